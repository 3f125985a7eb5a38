// A group's payload (shared/payload.py), from its bytes to rollouts made of pieces. Arrays are little-endian.

import { decode } from "/page/msgpack.js";

const SCHEMA = 1;

export function readPayload(buffer) {
  const map = decode(buffer);
  if (!(map instanceof Map)) throw new Error("it is not a payload");
  if (map.get("schema") !== SCHEMA)
    throw new Error(`it has schema ${map.get("schema")}, this page reads schema ${SCHEMA}`);
  const ints = (name) => typed(map, name, Int32Array);
  const group = {
    id: map.get("id"),
    prompt: ints("prompt"),
    lengths: ints("lengths"),
    tokens: ints("tokens"),
    advantages: typed(map, "advantages", Float32Array),
    lGen: typed(map, "l_gen", Float32Array),
    documents: map.get("documents"),
  };
  group.mask = bits(map.get("mask"), group.tokens.length);
  const trained = group.mask.reduce((a, b) => a + b, 0);
  const total = group.lengths.reduce((a, b) => a + b, 0);
  if (total !== group.tokens.length)
    throw new Error(`its lengths add up to ${total}, not to its ${group.tokens.length} tokens`);
  if (trained !== group.lGen.length)
    throw new Error(`it has ${group.lGen.length} log-probabilities for ${trained} tokens`);
  group.versions = versions(ints("version_runs"), trained);
  group.rollouts = rollouts(group, ints("turns"));
  return group;
}

// l_ref, one per trained token, or null where it does not belong to this group.
export function readReference(buffer, group) {
  return buffer.byteLength === 4 * group.lGen.length ? new Float32Array(buffer) : null;
}

function typed(map, name, Kind) {
  const raw = map.get(name);
  if (!(raw instanceof Uint8Array) || raw.length % 4) throw new Error(`its ${name} is not whole numbers of four bytes`);
  return new Kind(raw.buffer, raw.byteOffset, raw.length / 4);
}

function bits(raw, n) {
  if (!(raw instanceof Uint8Array) || raw.length !== Math.ceil(n / 8))
    throw new Error("its mask does not fit its tokens");
  const out = new Uint8Array(n);
  for (let i = 0; i < n; i++) out[i] = (raw[i >> 3] >> (7 - (i & 7))) & 1;
  return out;
}

function versions(runs, trained) {
  const out = new Array(trained);
  let at = 0;
  for (let i = 0; i + 2 < runs.length; i += 3) {
    const version = `${runs[i + 1]}.${runs[i + 2]}`;
    for (const end = Math.min(at + runs[i], trained); at < end; at++) out[at] = version;
  }
  if (at !== trained) throw new Error(`its versions cover ${at} of ${trained} tokens`);
  return out;
}

// Each rollout with the index of its first token and of its first log-probability, cut into what the policy wrote and
// what the environment answered, in order.
function rollouts(group, turns) {
  const sampled = Array.from(group.lengths, () => []);
  for (let i = 0; i + 2 < turns.length; i += 3) sampled[turns[i]]?.push([turns[i + 1], turns[i + 2]]);
  let first = 0,
    firstTrained = 0;
  return Array.from(group.lengths, (length, index) => {
    const made = {
      index,
      first,
      length,
      firstTrained,
      pieces: [],
      trained: 0,
      documents: group.documents[index] ?? [],
    };
    let at = 0;
    for (const [start, end] of sampled[index].sort((a, b) => a[0] - b[0])) {
      if (start > at) made.pieces.push({ sampled: false, start: at, end: start });
      made.pieces.push({ sampled: true, start, end });
      at = end;
    }
    if (at < length) made.pieces.push({ sampled: false, start: at, end: length });
    for (let i = first; i < first + length; i++) made.trained += group.mask[i];
    first += length;
    firstTrained += made.trained;
    return made;
  });
}

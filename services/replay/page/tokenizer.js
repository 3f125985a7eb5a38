// Ids to text by a model's tokenizer.json: byte-level BPE, SentencePiece (Metaspace, byte fallback), WordPiece. A kind
// that is not known here is shown as its token strings; without a file, ids are shown as numbers.

const utf8 = new TextEncoder();

export class Tokenizer {
  constructor(file) {
    const model = file.model ?? {};
    this.kind = kindOf(file);
    this.strings = new Map();
    if (Array.isArray(model.vocab)) model.vocab.forEach(([token], id) => this.strings.set(id, token));
    else for (const [token, id] of Object.entries(model.vocab ?? {})) this.strings.set(id, token);
    this.added = new Map((file.added_tokens ?? []).map((token) => [token.id, token.content]));
    this.prefix = model.continuing_subword_prefix || "##";
  }

  string(id) {
    return this.added.get(id) ?? this.strings.get(id) ?? `[${id}]`;
  }

  bytes(id) {
    const token = this.strings.get(id);
    if (this.added.has(id) || token === undefined) return utf8.encode(this.string(id));
    if (this.kind === "bytes") return fromByteLevel(token);
    if (this.kind === "metaspace") {
      const byte = /^<0x([0-9A-F]{2})>$/i.exec(token);
      return byte ? Uint8Array.of(parseInt(byte[1], 16)) : utf8.encode(token.replaceAll("▁", " "));
    }
    if (this.kind === "wordpiece") {
      return utf8.encode(token.startsWith(this.prefix) ? token.slice(this.prefix.length) : ` ${token}`);
    }
    return utf8.encode(this.kind === "words" ? ` ${token}` : token);
  }

  // One piece of text per id. A character whose bytes are spread over several ids appears at the last of them.
  pieces(ids) {
    const decoder = new TextDecoder();
    const out = Array.from(ids, (id) => decoder.decode(this.bytes(id), { stream: true }));
    if (out.length) out[out.length - 1] += decoder.decode();
    return out;
  }
}

export class Numbers {
  string(id) {
    return String(id);
  }

  pieces(ids) {
    return Array.from(ids, (id) => `${id} `);
  }
}

function kindOf(file) {
  const parts = (decoder) =>
    decoder?.type === "Sequence" ? decoder.decoders.flatMap(parts) : decoder ? [decoder] : [];
  const decoders = parts(file.decoder);
  const has = (type) => decoders.some((part) => part.type === type);
  if (has("ByteLevel")) return "bytes";
  if (
    has("Metaspace") ||
    has("ByteFallback") ||
    decoders.some((d) => d.type === "Replace" && d.pattern?.String === "▁")
  )
    return "metaspace";
  if (has("WordPiece") || file.model?.type === "WordPiece") return "wordpiece";
  return file.model?.type === "WordLevel" ? "words" : "strings";
}

// Byte-level BPE writes each byte as a printable character: itself where it is one, else the next free one from 256 on.
const BYTE_OF = (() => {
  const map = new Map();
  let free = 256;
  for (let byte = 0; byte < 256; byte++) {
    const printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    map.set(String.fromCodePoint(printable ? byte : free++), byte);
  }
  return map;
})();

function fromByteLevel(token) {
  const out = [];
  for (const character of token) {
    const byte = BYTE_OF.get(character);
    if (byte === undefined) return utf8.encode(token);
    out.push(byte);
  }
  return Uint8Array.from(out);
}

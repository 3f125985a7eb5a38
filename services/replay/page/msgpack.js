// The part of msgpack that a payload uses: maps with string keys, arrays, strings, bytes, integers, nil and booleans.

const text = new TextDecoder("utf-8", { fatal: true });

export function decode(buffer) {
  const view = new DataView(buffer);
  const raw = new Uint8Array(buffer);
  let at = 0;

  const take = (size) => {
    if (at + size > raw.length) throw new Error("it ends in the middle of a value");
    at += size;
    return at - size;
  };
  const uint = (size) => {
    const start = take(size);
    if (size === 8) return Number(view.getBigUint64(start));
    return size === 4 ? view.getUint32(start) : size === 2 ? view.getUint16(start) : view.getUint8(start);
  };
  const int = (size) => {
    const start = take(size);
    if (size === 8) return Number(view.getBigInt64(start));
    return size === 4 ? view.getInt32(start) : size === 2 ? view.getInt16(start) : view.getInt8(start);
  };
  const string = (size) => text.decode(raw.subarray(take(size), at));
  const bytes = (size) => raw.slice(take(size), at);
  const fits = (n) => {
    if (n > raw.length - at) throw new Error("it counts more values than it has bytes");
    return n;
  };
  const array = (n, depth) => Array.from({ length: fits(n) }, () => value(depth + 1));
  const map = (n, depth) => {
    const made = new Map();
    for (let i = fits(n); i > 0; i--) made.set(value(depth + 1), value(depth + 1));
    return made;
  };

  function value(depth) {
    if (depth > 16) throw new Error("it is nested too deeply");
    const type = uint(1);
    if (type < 0x80) return type;
    if (type < 0x90) return map(type & 15, depth);
    if (type < 0xa0) return array(type & 15, depth);
    if (type < 0xc0) return string(type & 31);
    if (type >= 0xe0) return type - 256;
    switch (type) {
      case 0xc0:
        return null;
      case 0xc2:
        return false;
      case 0xc3:
        return true;
      case 0xc4:
      case 0xc5:
      case 0xc6:
        return bytes(uint(1 << (type - 0xc4)));
      case 0xca:
        return view.getFloat32(take(4));
      case 0xcb:
        return view.getFloat64(take(8));
      case 0xcc:
      case 0xcd:
      case 0xce:
      case 0xcf:
        return uint(1 << (type - 0xcc));
      case 0xd0:
      case 0xd1:
      case 0xd2:
      case 0xd3:
        return int(1 << (type - 0xd0));
      case 0xd9:
      case 0xda:
      case 0xdb:
        return string(uint(1 << (type - 0xd9)));
      case 0xdc:
      case 0xdd:
        return array(uint(type === 0xdc ? 2 : 4), depth);
      case 0xde:
      case 0xdf:
        return map(uint(type === 0xde ? 2 : 4), depth);
      default:
        throw new Error(`byte ${type} begins nothing that is known here`);
    }
  }
  return value(0);
}

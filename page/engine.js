// Runs the planner, src/page/page.c as WebAssembly: in a worker of the page, and in node for tests.
'use strict';

// Makes a planner of a compiled module. Each call returns {code, out, err}: the exit code that the
// command of the program has, and what it writes.
function makePlanner(module) {
  const utf8 = new TextDecoder(), bytes = new TextEncoder();
  let written = {1: [], 2: []};
  let memory;
  const view = () => new DataView(memory.buffer);

  // Gathers what is written to the standard output and error.
  function fdWrite(fd, vectors, count, total) {
    let n = 0;
    for (let i = 0; i < count; i++) {
      const at = view().getUint32(vectors + 8 * i, true);
      const size = view().getUint32(vectors + 8 * i + 4, true);
      if (written[fd]) written[fd].push(new Uint8Array(memory.buffer, at, size).slice());
      n += size;
    }
    view().setUint32(total, n, true);
    return 0;
  }

  const system = {
    fd_write: fdWrite,
    fd_fdstat_get: () => 8,
    fd_seek: () => 8,
    fd_close: () => 0,
    proc_exit: code => { throw new Error('the planner ended with code ' + code); },
    environ_sizes_get: (count, size) => {
      view().setUint32(count, 0, true);
      view().setUint32(size, 0, true);
      return 0;
    },
    environ_get: () => 0,
    clock_time_get: (id, precision, at) => {
      view().setBigUint64(at, BigInt(Math.round(performance.now() * 1e6)), true);
      return 0;
    },
  };
  const imports = {};
  for (const x of WebAssembly.Module.imports(module)) {
    imports[x.module] = imports[x.module] || {};
    imports[x.module][x.name] = system[x.name] ||
      (x.name.startsWith('emscripten_notify') ? () => {} : () => { throw new Error(x.name + ' is not in the page'); });
  }
  const c = new WebAssembly.Instance(module, imports).exports;
  memory = c.memory;
  c._initialize();

  function give(text) {
    const b = bytes.encode(text), at = c.page_take(b.length);
    new Uint8Array(memory.buffer, at, b.length).set(b);
    view().setUint8(at + b.length, 0);
    return at;
  }

  function join(parts) {
    return parts.map(p => utf8.decode(p, {stream: true})).join('') + utf8.decode();
  }

  // Calls a function of page.c; texts are copied to its memory and numbers are passed.
  return function call(name, ...values) {
    written = {1: [], 2: []};
    const given = values.map(v => typeof v === 'string' ? give(v) : v);
    const code = c[name](...given);
    values.forEach((v, i) => { if (typeof v === 'string') c.page_give(given[i]); });
    return {code, out: join(written[1]), err: join(written[2])};
  };
}

if (typeof module !== 'undefined') module.exports = makePlanner;

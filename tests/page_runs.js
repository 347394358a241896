// Plans runs by the planner of the page, in node: page_runs.js PAGE RUNS OUT writes what
// `plimsoll plan RUN --json` prints for RUNS/*.json to OUT/*, and prints the seconds of each.
'use strict';
const fs = require('fs'), path = require('path');
const [page, runs, out] = process.argv.slice(2);
const makePlanner = require(path.resolve(page, 'engine.js'));
const text = fs.readFileSync(path.join(page, 'planner.js'), 'utf8');
const module_ = new WebAssembly.Module(Buffer.from(text.slice(text.indexOf('"') + 1, text.lastIndexOf('"')), 'base64'));
const call = makePlanner(module_);
call('page_file', 'folder/config.json', fs.readFileSync(path.join(runs, 'folder', 'config.json'), 'utf8'));
for (const name of fs.readdirSync(runs).filter(f => f.endsWith('.json')).sort()) {
  const run = fs.readFileSync(path.join(runs, name), 'utf8'), began = performance.now();
  const plan = call('page_plan', run, 0), seconds = (performance.now() - began) / 1e3;
  fs.writeFileSync(path.join(out, name), plan.out);
  const held = call('page_open', run);
  console.log(name, plan.code, seconds.toFixed(2), held.out === plan.out ? 'same' : 'page_open differs', plan.err);
}

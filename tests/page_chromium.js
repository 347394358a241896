// Opens the page in headless Chromium: page_chromium.js PAGE RUNS OUT writes what the page plans
// for RUNS/*.json to OUT/*, opens the page as a file, fills the form, and checks it at phone width,
// by keyboard and in dark mode. A line for each check; exit 1 when one fails. Screenshots are
// written to OUT/*.png.
'use strict';
const fs = require('fs'), path = require('path'), startChromium = require('./chromium.js');
const [page, runs, out] = process.argv.slice(2);
let failed = 0;
function check(name, good, note) {
  if (!good) failed++;
  console.log((good ? 'ok ' : 'FAIL ') + name + (note ? ': ' + note : ''));
}
const read = name => JSON.stringify(fs.readFileSync(path.join(runs, name), 'utf8'));

async function main(chromium) {
  const {evaluate, until, screenshot, width, sleep} = chromium;
  const settled = () =>
    until("document.body.dataset.state === 'done' || document.body.dataset.state === 'refused'", 'a plan');
  const text = id => evaluate(`document.getElementById('${id}').textContent`);
  const save = (name, value) => fs.writeFileSync(path.join(out, name), String(value));
  async function fill(values) {
    await evaluate(`document.body.dataset.state = 'filling';
      for (const [id, v] of Object.entries(${JSON.stringify(values)})) {
        const e = id === 'way' ? document.querySelector('input[value=' + v + ']') : document.getElementById(id);
        if (id === 'way') e.checked = true; else e.value = v;
        e.dispatchEvent(new Event('input', {bubbles: true}));
      }`);
    await settled();
  }
  async function drop(json) {
    await evaluate(`document.body.dataset.state = 'filling'; takeFiles([new File([${json}], 'config.json')])`);
    await settled();
  }
  async function key(name) {
    const windowsVirtualKeyCode = {Tab: 9, ArrowLeft: 37}[name];
    for (const type of ['keyDown', 'keyUp'])
      await chromium.send('Input.dispatchKeyEvent', {type, key: name, code: name, windowsVirtualKeyCode});
  }

  await width(1280, 1000);
  const began = Date.now();
  await chromium.open(path.join(page, 'index.html'));
  await until("document.body && document.body.dataset.state === 'done'", 'the first plan');
  check('the page opened as a file', true, ((Date.now() - began) / 1e3).toFixed(1) + ' s, ' + await text('foot'));
  await screenshot('wide');

  // the bytes of all runs, by the same worker
  await evaluate(`state.files['folder/config.json'] = ${read('folder/config.json')}; startPlanner()`);
  for (const name of fs.readdirSync(runs).filter(f => f.endsWith('.json')))
    save(name, await evaluate(`ask(['page_plan', ${read(name)}, 0]).then(r => r[0].out)`));

  // models by the form; the test's script plans the same run files
  const forms = JSON.parse(fs.readFileSync(path.join(runs, 'forms'), 'utf8'));
  for (const [i, form] of forms.entries()) {
    await fill(form);
    save('form' + i + '.yaml', await text('yaml'));
    save('form' + i + '.plan', await evaluate("ask(['page_plan', JSON.stringify(state.run), 0]).then(r => r[0].out)"));
    save('form' + i + '.bytes', await evaluate('state.first.arena_bytes'));
  }
  await screenshot('last');

  // by keyboard
  const before = await evaluate('state.plan.arena_bytes');
  await evaluate("document.getElementById('budget').focus()");
  for (let i = 0; i < 400; i++) await key('ArrowLeft');
  await until(`state.plan.arena_bytes < ${before}`, 'a smaller plan');
  check('arrow keys move along the curve', true, before + ' to ' + await evaluate('state.plan.arena_bytes') + ' bytes');
  await until('!dragging', 'the end of the drag');
  save('form10.yaml', await text('yaml'));
  save('form10.bytes', await evaluate('state.plan.arena_bytes'));
  await evaluate("document.body.focus(); document.activeElement.blur()");
  const reached = [];
  for (let i = 0; i < 24; i++) {
    await key('Tab');
    const at = 'document.activeElement';
    reached.push(await evaluate(`${at}.id || ${at}.name || ${at}.className`));
  }
  const controls = ['model', 'file', 'gpu', 'way', 'rows', 'budget', 'copy', 'yaml'];
  check('Tab reaches every control', controls.every(x => reached.includes(x)), [...new Set(reached)].join(' '));

  // phone width and dark mode
  await width(360, 740);
  await sleep(200);
  const needed = await evaluate('document.documentElement.scrollWidth');
  check('360 pixels wide: nothing sticks out', needed <= 360, needed + ' px');
  await screenshot('phone');
  await chromium.scheme('dark');
  await sleep(200);
  check('dark mode', await evaluate("getComputedStyle(document.body).backgroundColor === 'rgb(20, 22, 26)'"));
  await screenshot('phone-dark');
  await width(1280, 1000);
  await sleep(300);
  await screenshot('wide-dark');

  // bad input
  await drop('\'{"model_type": "bloom", "hidden_size": 64}\'');
  const said = await text('sentence');
  check('a config.json of an unknown family', /bloom/i.test(said) && /llama/i.test(said), said);
  await drop('\'{"model_type": \'');
  check('a config.json that is cut off', /too early/.test(await text('sentence')));
  await drop(read('folder/config.json'));
  check('a config.json is planned', await evaluate('state.plan.fits'), await text('verdict'));
  const {requests, problems} = chromium;
  check('nothing leaves the page', requests.every(u => /^(file|blob|data):/.test(u)),
    requests.length + ' requests, all of files');
  check('no error in the page', !problems.length, problems.join('; '));
}

startChromium(out).then(chromium => main(chromium)
  .catch(e => check('the page in Chromium', false, e.stack))
  .finally(() => chromium.end(failed ? 1 : 0)));

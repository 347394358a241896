// Drives the page in headless Chromium over a pipe (no library): page_chromium.js PAGE RUNS OUT
// writes what the page plans for RUNS/*.json to OUT/*, opens the page as a file, fills the form,
// and checks it at phone width, by keyboard and in dark mode. A line for each check; exit 1 when
// one fails. Screenshots are written to OUT/*.png.
'use strict';
const fs = require('fs'), path = require('path'), {spawn} = require('child_process');
const [page, runs, out] = process.argv.slice(2);
const chromium = spawn('chromium', ['--headless', '--no-sandbox', '--disable-gpu', '--remote-debugging-pipe',
  '--user-data-dir=' + path.resolve(out, 'profile'), 'about:blank'], {stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe']});
const waiting = new Map(), problems = [];
let next = 1, rest = '', failed = 0;
chromium.stdio[4].on('data', d => {
  const parts = (rest + d).split('\0');
  rest = parts.pop();
  for (const text of parts) {
    const m = JSON.parse(text), w = waiting.get(m.id);
    if (m.method === 'Runtime.exceptionThrown') problems.push(m.params.exceptionDetails.exception.description);
    if (m.method === 'Network.requestWillBeSent') requests.push(m.params.request.url);
    if (!w) continue;
    waiting.delete(m.id);
    m.error ? w.reject(new Error(m.error.message)) : w.resolve(m.result);
  }
});
const requests = [];
let session;
function send(method, params = {}) {
  return new Promise((resolve, reject) => {
    const id = next++;
    waiting.set(id, {resolve, reject});
    chromium.stdio[3].write(JSON.stringify({id, method, params, sessionId: session}) + '\0');
  });
}
async function evaluate(expression) {
  const r = await send('Runtime.evaluate', {expression, awaitPromise: true, returnByValue: true});
  if (r.exceptionDetails) throw new Error(r.exceptionDetails.exception.description);
  return r.result.value;
}
const sleep = ms => new Promise(r => setTimeout(r, ms));
async function until(expression, what, seconds = 120) {
  for (const end = Date.now() + 1e3 * seconds; Date.now() < end; await sleep(50)) if (await evaluate(expression)) return;
  throw new Error('not within ' + seconds + ' s: ' + what);
}
function check(name, good, note) {
  if (!good) failed++;
  console.log((good ? 'ok ' : 'FAIL ') + name + (note ? ': ' + note : ''));
}
async function screenshot(name) {
  const r = await send('Page.captureScreenshot', {format: 'png', captureBeyondViewport: true});
  fs.writeFileSync(path.join(out, name + '.png'), Buffer.from(r.data, 'base64'));
}
const width = (w, h) => send('Emulation.setDeviceMetricsOverride', {width: w, height: h, deviceScaleFactor: 1, mobile: w < 600});
const settled = () => until("document.body.dataset.state === 'done' || document.body.dataset.state === 'refused'", 'a plan');
async function fill(values) {
  await evaluate(`document.body.dataset.state = 'filling'; for (const [id, v] of Object.entries(${JSON.stringify(values)})) {
    const e = id.startsWith('way') ? document.querySelector('input[value=' + v + ']') : document.getElementById(id);
    if (id === 'way') e.checked = true; else e.value = v;
    e.dispatchEvent(new Event('input', {bubbles: true})); }`);
  await settled();
}
async function key(name) {
  for (const type of ['keyDown', 'keyUp']) await send('Input.dispatchKeyEvent', {type, key: name, code: name,
    windowsVirtualKeyCode: {Tab: 9, ArrowLeft: 37, ArrowRight: 39}[name]});
}

async function main() {
  const {targetInfos} = await send('Target.getTargets');
  session = (await send('Target.attachToTarget', {targetId: targetInfos.find(t => t.type === 'page').targetId, flatten: true})).sessionId;
  for (const domain of ['Page', 'Runtime', 'Network']) await send(domain + '.enable');
  await width(1280, 1000);
  const began = Date.now();
  await send('Page.navigate', {url: 'file://' + path.resolve(page, 'index.html')});
  await until("document.body && document.body.dataset.state === 'done'", 'the first plan');
  check('the page opened as a file', true, ((Date.now() - began) / 1e3).toFixed(1) + ' s, ' + await evaluate("document.getElementById('foot').textContent"));
  await screenshot('wide');

  // the bytes of all runs, by the same worker
  await evaluate(`state.files['folder/config.json'] = ${JSON.stringify(fs.readFileSync(path.join(runs, 'folder/config.json'), 'utf8'))}; startPlanner()`);
  for (const name of fs.readdirSync(runs).filter(f => f.endsWith('.json')))
    fs.writeFileSync(path.join(out, name), await evaluate(`ask(['page_plan', ${JSON.stringify(fs.readFileSync(path.join(runs, name), 'utf8'))}, 0]).then(r => r[0].out)`));

  // models by the form; the test's script plans the same run files
  const forms = JSON.parse(fs.readFileSync(path.join(runs, 'forms'), 'utf8'));
  for (const [i, form] of forms.entries()) {
    await fill(form);
    fs.writeFileSync(path.join(out, 'form' + i + '.yaml'), await evaluate("document.getElementById('yaml').textContent"));
    fs.writeFileSync(path.join(out, 'form' + i + '.plan'), await evaluate("ask(['page_plan', JSON.stringify(state.run), 0]).then(r => r[0].out)"));
    fs.writeFileSync(path.join(out, 'form' + i + '.bytes'), String(await evaluate('state.first.arena_bytes')));
  }
  await screenshot('last');

  // by keyboard
  const before = await evaluate('state.plan.arena_bytes');
  await evaluate("document.getElementById('budget').focus()");
  for (let i = 0; i < 400; i++) await key('ArrowLeft');
  await until(`state.plan.arena_bytes < ${before}`, 'a smaller plan');
  check('arrow keys move along the curve', true, before + ' to ' + await evaluate('state.plan.arena_bytes') + ' bytes');
  await until('!dragging', 'the end of the drag');
  fs.writeFileSync(path.join(out, 'form10.yaml'), await evaluate("document.getElementById('yaml').textContent"));
  fs.writeFileSync(path.join(out, 'form10.bytes'), String(await evaluate('state.plan.arena_bytes')));
  await evaluate("document.body.focus(); document.activeElement.blur()");
  const reached = [];
  for (let i = 0; i < 24; i++) {
    await key('Tab');
    reached.push(await evaluate("document.activeElement.id || document.activeElement.name || document.activeElement.className"));
  }
  check('Tab reaches every control', ['model', 'file', 'gpu', 'way', 'rows', 'budget', 'copy', 'yaml'].every(x => reached.includes(x)), [...new Set(reached)].join(' '));

  // phone width and dark mode
  await width(360, 740);
  await sleep(200);
  check('360 pixels wide: nothing sticks out', await evaluate('document.documentElement.scrollWidth <= 360'), await evaluate('document.documentElement.scrollWidth') + ' px');
  await screenshot('phone');
  await send('Emulation.setEmulatedMedia', {features: [{name: 'prefers-color-scheme', value: 'dark'}]});
  await sleep(200);
  check('dark mode', await evaluate("getComputedStyle(document.body).backgroundColor === 'rgb(20, 22, 26)'"));
  await screenshot('phone-dark');
  await width(1280, 1000);
  await sleep(300);
  await screenshot('wide-dark');

  // bad input
  await evaluate(`document.body.dataset.state = 'filling'; takeFiles([new File(['{"model_type": "bloom", "hidden_size": 64}'], 'config.json')])`);
  await settled();
  const said = await evaluate("document.getElementById('sentence').textContent");
  check('a config.json of an unknown family', /bloom/i.test(said) && /llama/i.test(said), said);
  await evaluate(`document.body.dataset.state = 'filling'; takeFiles([new File(['{"model_type": '], 'config.json')])`);
  await settled();
  check('a config.json that is cut off', /too early/.test(await evaluate("document.getElementById('sentence').textContent")));
  await evaluate(`document.body.dataset.state = 'filling'; takeFiles([new File([${JSON.stringify(fs.readFileSync(path.join(runs, 'folder/config.json'), 'utf8'))}], 'config.json')])`);
  await settled();
  check('a config.json is planned', await evaluate('state.plan.fits'), await evaluate("document.getElementById('verdict').textContent"));
  check('nothing leaves the page', requests.every(u => /^(file|blob|data):/.test(u)), requests.length + ' requests, all of files');
  check('no error in the page', !problems.length, problems.join('; '));
}

main().catch(e => check('the page in Chromium', false, e.stack)).finally(() => {
  chromium.kill();
  chromium.on('exit', () => process.exit(failed ? 1 : 0));
});

// Drives headless Chromium over a pipe, without a library.
'use strict';
const fs = require('fs'), path = require('path'), {spawn} = require('child_process');

// Starts a browser. What it writes is below the folder `out`, screenshots as out/NAME.png;
// `problems` and `requests` list what its pages threw and asked for.
async function startChromium(out) {
  const browser = spawn('chromium', ['--headless', '--no-sandbox', '--disable-gpu', '--remote-debugging-pipe',
    '--user-data-dir=' + path.resolve(out, 'profile'), 'about:blank'],
    {stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe']});
  const waiting = new Map(), problems = [], requests = [];
  let next = 1, rest = '', session;
  browser.stdio[4].on('data', d => {
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
  const sleep = ms => new Promise(r => setTimeout(r, ms));
  const send = (method, params = {}) => new Promise((resolve, reject) => {
    const id = next++;
    waiting.set(id, {resolve, reject});
    browser.stdio[3].write(JSON.stringify({id, method, params, sessionId: session}) + '\0');
  });
  async function evaluate(expression) {
    const r = await send('Runtime.evaluate', {expression, awaitPromise: true, returnByValue: true});
    if (r.exceptionDetails) throw new Error(r.exceptionDetails.exception.description);
    return r.result.value;
  }
  async function until(expression, what, seconds = 120) {
    for (const end = Date.now() + 1e3 * seconds; Date.now() < end; await sleep(50))
      if (await evaluate(expression)) return;
    throw new Error('not within ' + seconds + ' s: ' + what);
  }
  async function open(file) {
    await send('Page.navigate', {url: 'file://' + path.resolve(file)});
    await until("document.readyState === 'complete'", file);
  }
  async function screenshot(name, whole = true) {
    const r = await send('Page.captureScreenshot', {format: 'png', captureBeyondViewport: whole});
    fs.writeFileSync(path.join(out, name + '.png'), Buffer.from(r.data, 'base64'));
  }
  const width = (w, h) => send('Emulation.setDeviceMetricsOverride',
    {width: w, height: h, deviceScaleFactor: 1, mobile: w < 600});
  const scheme = value => send('Emulation.setEmulatedMedia', {features: [{name: 'prefers-color-scheme', value}]});
  function end(code) {
    browser.on('exit', () => process.exit(code));
    browser.kill();
  }

  const {targetInfos} = await send('Target.getTargets');
  const {targetId} = targetInfos.find(t => t.type === 'page');
  session = (await send('Target.attachToTarget', {targetId, flatten: true})).sessionId;
  for (const domain of ['Page', 'Runtime', 'Network']) await send(domain + '.enable');
  return {problems, requests, sleep, send, evaluate, until, open, screenshot, width, scheme, end};
}

module.exports = startChromium;

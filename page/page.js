// The page "Does it fit on my GPU?": a form, a planner in a worker (engine.js), and what it found.
'use strict';

const GIB = 2 ** 30;
const $ = id => document.getElementById(id);
const state = {models: [], gpus: [], model: null, files: {}, run: null, plan: null, map: null, points: [],
               range: null, asked: 0};

// --- figures ---------------------------------------------------------------------------------

function size(bytes) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let i = 0;
  while (bytes >= 1024 && i < 4) bytes /= 1024, i++;
  return (i ? bytes.toFixed(2) : bytes) + ' ' + units[i];
}
const time = s => s >= 100 ? s.toFixed(0) + ' s' : s >= 1 ? s.toFixed(2) + ' s' : (1e3 * s).toPrecision(3) + ' ms';
const count = n => n.toLocaleString('en-US');

function element(tag, text, parent, of) {
  const e = document.createElement(tag);
  if (text !== undefined) e.textContent = text;
  Object.assign(e, of);
  if (parent) parent.append(e);
  return e;
}

// --- the planner ------------------------------------------------------------------------------

// Runs in the worker: one call after the other. A message is a list of calls, which nothing comes
// between. After a call that failed inside the planner a new one is made.
function workerMain() {
  let module, call;
  const files = {};
  const make = () => {
    call = makePlanner(module);
    for (const name in files) call('page_file', name, files[name]);
  };
  self.onmessage = e => {
    const {id, bytes, calls} = e.data;
    if (bytes) module = new WebAssembly.Module(bytes), make();
    try {
      self.postMessage({id, results: (calls || []).map(c => {
        if (c[0] === 'page_file') files[c[1]] = c[2];
        return call(...c);
      })});
    } catch (x) {
      make();
      self.postMessage({id, error: String(x.message || x)});
    }
  };
}

const planner = {worker: null, waiting: new Map(), next: 1};
const wasm = Uint8Array.from(atob(PLANNER), c => c.charCodeAt(0));

function startPlanner() {
  if (planner.worker) planner.worker.terminate();
  for (const w of planner.waiting.values()) w.reject(new Error('stopped'));
  planner.waiting.clear();
  const source = "'use strict';\n" + makePlanner + '\n' + workerMain + '\nworkerMain();';
  planner.worker = new Worker(URL.createObjectURL(new Blob([source], {type: 'text/javascript'})));
  planner.worker.onmessage = e => {
    const w = planner.waiting.get(e.data.id);
    planner.waiting.delete(e.data.id);
    if (w) e.data.error ? w.reject(new Error(e.data.error)) : w.resolve(e.data.results);
  };
  planner.worker.postMessage({bytes: wasm});
  const files = Object.entries(state.files).map(([name, text]) => ['page_file', name, text]);
  if (files.length) ask(...files).catch(() => {});
}

// Asks for calls in a row; resolves to their results.
function ask(...calls) {
  return new Promise((resolve, reject) => {
    const id = planner.next++;
    planner.waiting.set(id, {resolve, reject});
    planner.worker.postMessage({id, calls});
  });
}

// --- the form ---------------------------------------------------------------------------------

function show(selector, visible) {
  for (const e of document.querySelectorAll(selector)) e.hidden = !visible;
}

function findModel(name) {
  const wanted = name.trim().toLowerCase();
  return state.models.find(m => m.name.toLowerCase() === wanted ||
    m.endings.split(' ').some(x => x && (m.name + x).toLowerCase() === wanted));
}

function showModel() {
  const m = state.model;
  const way = document.querySelector('input[name=way]:checked').value;
  show('.text', m && !m.masks);
  show('.images', m && m.images && !m.masks);
  show('.sized', m && m.sized && !m.masks && Number($('images').value) > 0);
  show('.masks', m && m.masks);
  show('.lora', way !== 'full');
  show('.other', !$('gpu').value);
  $('about').textContent = !m ? 'Names are those of the Hugging Face Hub.' :
    m.family +
    (m.parameters ? ', ' + (isNaN(m.parameters) ? m.parameters : count(Number(m.parameters))) + ' weights' : '') +
    (m.context ? ', context ' + count(m.context) : '') +
    (m.least ? ', QLoRA from ' + size(m.least) + ' of GPU memory' : '');
}

async function findGpu() {
  const named = state.gpus.find(g => g.name === $('gpu').value);
  if (named) return named;
  const [r] = await ask(['page_gpu_of', Number($('gib').value)]);
  return JSON.parse(r.out);
}

// Makes the run of the form, as a run file has it.
function makeRun(gpu) {
  const m = state.model, way = document.querySelector('input[name=way]:checked').value;
  const run = {model: m.given ? {path: 'model'} : {preset: m.name}};
  const number = id => Math.max(1, Math.round(Number($(id).value) || 1));
  run.data = m.masks ? {format: 'sa1b', train: 'data/images', max_masks: number('masks')} :
    {format: 'conversations', train: 'data/train.jsonl', sequence: number('tokens')};
  if (m.images && !m.masks) run.data.images = 'data/images', run.data.max_images = 0;
  run.train = {epochs: 1, effective_batch: number('rows'), learning_rate: way === 'full' ? 1e-5 : 1e-4,
               out: 'runs/first'};
  run.memory = {budget: $('gpu').value ? 'auto' : gpu.budget};
  if ($('host').value !== '') run.memory.host_budget = Math.max(1, Math.round(Number($('host').value) * GIB));
  if (way === 'qlora') run.memory.quantize = 'nf4';
  if (way !== 'full') run.adapter = {r: number('rank'), lora_alpha: 2 * number('rank'), target_modules: 'all-linear'};
  run.device = {kind: 'cuda', profile: gpu.name};
  return run;
}

// --- planning ---------------------------------------------------------------------------------

// The first line of a message, without the name of the run file.
const message = r => r.err.replace(/^run\.yaml(:\d+)?: /, '');

function refuse(text) {
  $('result').classList.remove('busy');
  $('verdict').className = 'bad';
  $('verdict').textContent = 'It cannot be planned';
  $('sentence').textContent = text;
  document.body.dataset.state = 'refused';
}

async function plan() {
  const asked = ++state.asked;
  document.body.dataset.state = 'planning';
  if (planner.waiting.size) startPlanner();
  $('result').classList.add('busy');
  try {
    showModel();
    if (!state.model) return refuse('No published model has this name; a config.json describes any other.');
    if (!state.model.trains) return refuse('A ' + state.model.family + ' trains with a head over it: `plimsoll init`.');
    const gpu = state.gpu = await findGpu(), m = state.model;
    const images = m.images && !m.masks && Number($('images').value) > 0 ? String(Number($('images').value)) : '';
    const run = makeRun(gpu), began = performance.now();
    if (images) delete run.data.max_images;
    const [r] = await ask(['page_resolve', JSON.stringify(run), images, images && m.sized ? $('size').value : '']);
    if (asked !== state.asked) return;
    if (r.code) return refuse(message(r));
    const resolved = JSON.parse(r.out);
    state.run = resolved.run, state.yaml = resolved.yaml;
    const [p, map] = await ask(['page_open', JSON.stringify(state.run)], ['page_map']);
    if (asked !== state.asked) return;
    if (p.code && p.code !== 3) return refuse(message(p));
    state.seconds = (performance.now() - began) / 1e3;
    state.first = JSON.parse(p.out);
    state.points = [];
    showPlan(state.first, map.code ? null : JSON.parse(map.out));
    await sweep(asked);
  } catch (x) {
    if (x.message !== 'stopped' && asked === state.asked) refuse(x.message);
  }
}

const point = p => ({budget: p.budget_bytes, arena: p.arena_bytes, seconds: p.predicted_step_seconds, fits: p.fits,
                     host: p.arenas.host});

// Plans within budgets between the smallest and the one that no longer limits.
async function sweep(asked) {
  const within = async bytes => JSON.parse((await ask(['page_within', bytes]))[0].out);
  const host = 'host_budget_bytes' in state.first && state.first.refused_by === 'memory.host_budget';
  const most = await within(0);
  if (asked !== state.asked) return;
  const low = most.smallest_budget_bytes || most.arena_bytes;
  const high = Math.max(most.arena_bytes, state.gpu.budget);
  state.range = {low, high: Math.max(high, low * 1.01)};
  const add = p => {
    if (p.fits) state.points.push(point(p));
    state.points.sort((a, b) => a.arena - b.arena);
    drawCurve();
  };
  add(most);
  add(state.first);
  $('budget').disabled = host;
  placeBudget(state.first.budget_bytes || state.gpu.budget);
  document.body.dataset.state = 'planned';
  for (let i = 0; i < 16; i++) {
    if (asked !== state.asked) return;
    add(await within(Math.ceil(low * (most.arena_bytes / low) ** (i / 16))));
  }
  document.body.dataset.state = 'done';
}

const budgetAt = x => state.range.low * (state.range.high / state.range.low) ** (x / 1000);

function placeBudget(bytes) {
  const {low, high} = state.range;
  state.budget = Math.min(high, Math.max(low, bytes));
  $('budget').value = Math.round(1000 * Math.log(state.budget / low) / Math.log(high / low));
  $('at').textContent = size(state.budget);
  $('budget').setAttribute('aria-valuetext', size(state.budget));
  drawCurve();
}

let dragging = false;
async function drag() {
  $('at').textContent = size(Math.ceil(budgetAt(Number($('budget').value))));
  placeBudget(Math.ceil(budgetAt(Number($('budget').value))));
  if (dragging) return;
  dragging = true;
  const asked = state.asked;
  for (let bytes = 0; bytes !== state.budget && asked === state.asked;) {
    bytes = state.budget;
    try {
      const [p, map] = await ask(['page_within', bytes], ['page_map']);
      if (asked === state.asked && !(p.code && p.code !== 3)) showPlan(JSON.parse(p.out), JSON.parse(map.out), bytes);
    } catch (x) {
      break;
    }
  }
  dragging = false;
}

// --- what was found ---------------------------------------------------------------------------

const kindColour = name => {
  const c = getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim();
  return c || getComputedStyle(document.documentElement).getPropertyValue('--other').trim();
};

function showPlan(p, map, budget) {
  state.plan = p, state.shown = budget;
  if (map) state.map = map;
  const limit = budget || p.budget_bytes, host = p.arenas.host, batch = p.settings.effective_batch;
  const gpu = state.gpu, named = size(Number($('gib').value) * GIB) + ' (with the figures of ' + gpu.name + ')';
  const by = $('gpu').value ? gpu.name : named;
  $('result').classList.remove('busy');
  $('verdict').className = p.fits ? 'good' : 'bad';
  $('verdict').textContent = p.fits ?
    'It fits: ' + size(p.arena_bytes) + (limit ? ' of ' + size(limit) : '') :
    'It does not fit: the smallest plan needs ' + size(p.arena_bytes) +
      (limit ? ', and there are ' + size(limit) : '');
  $('sentence').textContent = 'On ' + by + ': ' + (p.fits ? time(p.predicted_step_seconds) + ' a step, ' +
    (batch / p.predicted_step_seconds).toPrecision(3) + ' samples/s (' +
    (p.ceilings && p.ceilings.prediction === 'unmeasured' ? 'from published peak rates, unmeasured' :
      'from measured kernels') + '); ' : '') + size(host) + ' of host memory; smallest budget ' +
    size(p.smallest_budget_bytes) + '.';
  const list = $('warnings');
  list.replaceChildren();
  for (const w of p.warnings || []) element('li', w, list);
  for (const c of p.changes_that_fit || [])
    element('li', 'Fits with ' + c.change + ' (from ' + size(c.smallest_budget_bytes) + ', host memory ' +
      size(c.host_bytes) + ')', list);
  showKinds(p);
  showChosen(p);
  $('yaml').textContent = state.yaml;
  if (budget) $('yaml').textContent = state.yaml.replace(/^( +budget:).*$/m, '$1 ' + budget);
  const m = state.model;
  $('commands').textContent = 'Put your data where data.train says, then: ' +
    (m.given ? '' : 'hf download ' + m.name + ' --local-dir models/' + m.name.split('/').pop() + '; ') +
    'plimsoll train run.yaml' + (m.given ? '' : ' --set model.path=models/' + m.name.split('/').pop()) +
    '. On the machine with the GPU leave device.profile out.';
  $('foot').textContent = 'Planned in ' + state.seconds.toFixed(2) + ' s in this browser, by the same C as the ' +
    'program, which allocates these bytes once, before the first step. Times are predicted.';
  drawMap();
  drawCurve();
}

function showKinds(p) {
  const table = $('kinds'), total = p.arena_bytes;
  table.replaceChildren();
  const rows = Object.entries(p.breakdown).filter(([, n]) => n > 0).sort((a, b) => b[1] - a[1]);
  rows.push(['padding', p.padding], ['arena', total]);
  for (const [name, n] of rows) {
    const tr = element('tr', undefined, table), td = element('td', undefined, tr);
    if (name !== 'padding' && name !== 'arena')
      element('span', undefined, td, {className: 'chip'}).style.background = kindColour(name);
    td.append(name);
    element('td', size(n), tr, {title: count(n) + ' bytes'});
    element('td', (100 * n / total).toFixed(1) + ' %', tr);
  }
}

function showChosen(p) {
  const table = $('chosen'), s = p.settings, saved = p.techniques || [];
  table.replaceChildren();
  if (saved.length) {
    const tr = element('tr', undefined, element('thead', undefined, table));
    for (const x of ['technique', 'saves', 'costs']) element('th', x, tr);
    for (const t of saved) {
      const row = element('tr', undefined, table);
      element('td', t.name, row);
      element('td', size(Math.max(0, t.saved_bytes)), row);
      element('td', t.seconds > 0 ? time(t.seconds) + ' a step' : 'no time', row);
    }
  }
  for (const [name, x] of [['micro-batch', s.micro_batch + ' × ' + s.accumulation], ['recompute', s.recompute],
    ['offload', s.offload], ['head in chunks', s.head_chunks], ['optimizer', s.optimizer], ['precision', s.precision],
    ['4-bit weights', s.quantize]]) {
    const row = element('tr', undefined, table);
    element('td', name, row);
    element('td', String(x), row, {colSpan: saved.length ? 2 : 1});
  }
  const next = p.next_gib;
  $('why').textContent = 'The fastest plan that fits. Each saving is that of the plan without the technique.' +
    (next && next.predicted_seconds < p.predicted_step_seconds ?
      ' One GiB more: ' + time(next.predicted_seconds) + ' a step.' : '');
}

// --- the curve --------------------------------------------------------------------------------

const plot = {x: 60, y: 10, w: 0, h: 190, all: 0};

function svg(tag, of, text) {
  const e = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const k in of) e.setAttribute(k, of[k]);
  if (text !== undefined) e.textContent = text;
  $('plot').append(e);
}

function upright(x, of) {
  svg('line', Object.assign({x1: x, x2: x, y1: plot.y, y2: plot.y + plot.h}, of));
}

function drawCurve() {
  const r = state.range, points = state.points;
  $('plot').replaceChildren();
  if (!r || !points.length) return;
  plot.all = Math.max(280, $('plot').clientWidth), plot.w = plot.all - plot.x - 10;
  $('plot').setAttribute('viewBox', '0 0 ' + plot.all + ' 250');
  // the slider lies below the curve, its thumb below the line
  $('budget').style.marginLeft = plot.x - 8 + 'px', $('budget').style.width = plot.w + 16 + 'px';
  const marks = plot.w > 400 ? 4 : 2;
  const least = Math.min(...points.map(p => p.seconds)), most = Math.max(...points.map(p => p.seconds));
  const top = most + .08 * (most - least || most), bottom = Math.max(0, least - .15 * (most - least || most));
  const x = b => plot.x + plot.w * Math.log(b / r.low) / Math.log(r.high / r.low);
  const y = s => plot.y + plot.h * (top - s) / (top - bottom);
  for (let i = 0; i <= marks; i++) {
    const s = bottom + (top - bottom) * i / marks, b = r.low * (r.high / r.low) ** (i / marks);
    svg('line', {x1: plot.x, x2: plot.x + plot.w, y1: y(s), y2: y(s), stroke: 'var(--line)'});
    svg('text', {x: plot.x - 6, y: y(s) + 4, 'text-anchor': 'end'}, time(s));
    const side = i === marks ? 'end' : i ? 'middle' : 'start';
    svg('text', {x: x(b), y: plot.y + plot.h + 18, 'text-anchor': side}, size(b));
  }
  svg('text', {x: plot.x + 4, y: plot.y + plot.h + 36}, 'memory of the GPU; up: seconds of a step');
  const gpu = state.gpu.budget;
  if (gpu >= r.low && gpu <= r.high) {
    upright(x(gpu), {stroke: 'var(--dim)', 'stroke-dasharray': '4 4'});
    svg('text', {x: x(gpu) - 4, y: plot.y + 12, 'text-anchor': 'end'}, state.gpu.name);
  }
  // a step at each plan: more budget is never slower
  let d = '', best = Infinity;
  for (const p of points) {
    if (p.seconds >= best) continue;
    d += d ? 'H' + x(p.arena) + 'V' + y(p.seconds) : 'M' + x(Math.max(p.arena, r.low)) + ' ' + y(p.seconds);
    best = p.seconds;
  }
  svg('path', {d: d + 'H' + (plot.x + plot.w), fill: 'none', stroke: 'var(--accent)', 'stroke-width': 2});
  for (const p of points)
    svg('circle', {cx: x(Math.max(p.arena, r.low)), cy: y(p.seconds), r: 3, fill: 'var(--accent)'});
  if (!state.budget) return;
  upright(x(state.budget), {stroke: 'var(--fg)', 'stroke-width': 2});
  if (state.plan && state.plan.fits)
    svg('circle', {cx: x(state.budget), cy: y(Math.min(most, state.plan.predicted_step_seconds)), r: 7,
                   fill: 'var(--accent)', stroke: 'var(--bg)', 'stroke-width': 2});
}

function dragTo(e) {
  if ($('budget').disabled) return;
  const box = $('plot').getBoundingClientRect(), x = (e.clientX - box.left) / box.width * plot.all;
  $('budget').value = Math.round(Math.min(1000, Math.max(0, 1000 * (x - plot.x) / plot.w)));
  drag();
}

// --- the map ----------------------------------------------------------------------------------

function drawMap() {
  const c = $('map'), g = c.getContext('2d'), map = state.map, ratio = window.devicePixelRatio || 1;
  c.width = Math.round(c.clientWidth * ratio), c.height = Math.round(c.clientHeight * ratio);
  if (!map || !state.plan) return;
  const colours = map.kinds.map(kindColour), w = c.width / map.ops, h = c.height / state.plan.arena_bytes;
  for (const [from, to, offset, bytes, kind] of map.rects) {
    g.fillStyle = colours[kind];
    g.fillRect(from * w, c.height - (offset + bytes) * h, Math.max(.5, (to - from) * w), Math.max(.5, bytes * h));
  }
  g.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue('--fg');
  g.setLineDash([4 * ratio, 4 * ratio]);
  g.beginPath();
  g.moveTo(map.update * w, 0);
  g.lineTo(map.update * w, c.height);
  g.stroke();
}

function pointAt(e) {
  const box = $('map').getBoundingClientRect(), map = state.map;
  if (!map) return;
  const op = (e.clientX - box.left) / box.width * map.ops;
  const at = (1 - (e.clientY - box.top) / box.height) * state.plan.arena_bytes;
  let found = null;
  for (const r of map.rects) if (r[0] <= op && op < r[1] && r[2] <= at && at < r[2] + r[3]) found = r;
  $('tip').textContent = found ?
    found[5] + ': ' + size(found[3]) + ' (' + count(found[3]) + ' bytes) at ' + count(found[2]) + ', ' +
      map.kinds[found[4]] + ', ops ' + found[0] + ' to ' + (found[1] - 1) + ' of ' + map.ops :
    'Free: op ' + Math.floor(op) + ', address ' + size(at);
}

// --- files ------------------------------------------------------------------------------------

async function takeFiles(files) {
  for (const f of files) {
    const text = await f.text(), wanted = f.name.toLowerCase().endsWith('config.json') || files.length === 1;
    if (wanted) state.files['model/' + (files.length === 1 ? 'config.json' : f.name)] = text;
  }
  startPlanner();
  const [r] = await ask(['page_model', 'model']);
  $('model').value = '';
  if (r.code) {
    state.model = null;
    state.asked++;
    return refuse(message(r));
  }
  state.model = Object.assign(JSON.parse(r.out), {given: true, endings: '', name: 'model'});
  plan();
}

// --- begin ------------------------------------------------------------------------------------

let timer;
function changed(e) {
  clearTimeout(timer);
  if (e && e.target.id === 'file') return;
  if (e && e.target.id === 'model') state.model = findModel($('model').value);
  showModel();
  timer = setTimeout(plan, 150);
}

async function begin() {
  startPlanner();
  const [models, gpus] = await ask(['page_models'], ['page_gpus']);
  state.models = JSON.parse(models.out);
  state.gpus = JSON.parse(gpus.out).sort((a, b) => a.memory - b.memory);
  for (const m of state.models) element('option', undefined, $('models'), {value: m.name});
  for (const g of state.gpus)
    $('gpu').append(new Option(g.name + ', ' + (g.memory / GIB).toFixed(1) + ' GiB', g.name, false,
                               g.name === 'rtx-4090'));
  state.model = findModel($('model').value);
  plan();
}

$('form').addEventListener('input', e => { if (e.target.type !== 'file') changed(e); });
$('form').addEventListener('submit', e => e.preventDefault());
$('file').addEventListener('change', e => takeFiles([...e.target.files]));
for (const name of ['dragover', 'dragleave', 'drop'])
  document.addEventListener(name, e => {
    e.preventDefault();
    $('drop').classList.toggle('over', name === 'dragover');
    if (name === 'drop' && e.dataTransfer.files.length) takeFiles([...e.dataTransfer.files]);
  });
$('budget').addEventListener('input', drag);
$('plot').addEventListener('pointerdown', e => { $('plot').setPointerCapture(e.pointerId); dragTo(e); });
$('plot').addEventListener('pointermove', e => { if ($('plot').hasPointerCapture(e.pointerId)) dragTo(e); });
$('map').addEventListener('pointermove', pointAt);
$('map').addEventListener('pointerdown', pointAt);
$('copy').addEventListener('click', async () => {
  await navigator.clipboard.writeText($('yaml').textContent);
  $('copy').textContent = 'Copied';
  setTimeout(() => { $('copy').textContent = 'Copy'; }, 1500);
});
window.addEventListener('resize', () => { drawMap(); drawCurve(); });
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
  if (state.plan) showPlan(state.plan, null, state.shown);
});
begin().catch(x => refuse(x.message));

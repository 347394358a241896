/*
 * arena.c: see lives.h.
 *
 *     data for the page      kinds [...], colours [...], rects [from, to, address, bytes, kind,
 *                            name, op, module]
 *     the page's script      draws them on a canvas; the wheel zooms, a drag pans, a double
 *                            click resets the view
 *
 * The width of an instant is the time of its node, summed over all iterations of its loop. Nodes
 * without a measured time are one microsecond wide, so that their order stays visible.
 */
#include "report/lives.h"

#include <math.h>

#include "graph/ops.h"
#include "io/json.h"
#include "report/page.h"

enum { CURVE_POINTS = 600 };
static const double LEAST = 1e-6; /* seconds of a node without a measured time */

/* The start time of each instant of a step's programs; [n] is the end. The caller frees them. */
struct times {
    double *at[PROGRAM_COUNT];
    double end, update; /* update: the start of the program that gets the gradients */
};

static struct times make_times(const struct graph *g, const double *seconds)
{
    struct times t = {0};
    FOR_STEP_PROGRAMS(p) {
        uint32_t n = g->order[p].nodes.n;
        if (program_is(p, PROGRAM_HANDED)) t.update = t.end;
        t.at[p] = mem_alloc((n + 1) * sizeof(double));
        for (uint32_t k = 0; k < n; k++) {
            double s = seconds[g->order[p].nodes.at[k]];
            t.at[p][k] = t.end;
            t.end += s > LEAST ? s : LEAST;
        }
        t.at[p][n] = t.end;
    }
    return t;
}

static void free_times(struct times *t)
{
    for (int p = 0; p < PROGRAM_COUNT; p++) mem_free(t->at[p]);
}

/* --- the data ---------------------------------------------------------------------- */

static void put_rectangle(struct json_writer *w, double from, double to, uint64_t offset, uint64_t bytes,
                          enum kind kind, const char *name, const char *producer, const char *module)
{
    json_begin_list(w, NULL);
    json_put_number(w, NULL, round(1e9 * from) / 1e6);
    json_put_number(w, NULL, round(1e9 * to) / 1e6);
    json_put_uint(w, NULL, offset);
    json_put_uint(w, NULL, bytes);
    json_put_int(w, NULL, kind);
    json_put_string(w, NULL, name);
    json_put_string(w, NULL, producer);
    json_put_string(w, NULL, module);
    json_end(w);
}

static void put_persistent(struct json_writer *w, const struct plan *p, const struct graph *g, double end)
{
    for (id s = 1; s < g->storages.n; s++) {
        const struct storage *x = &g->storages.at[s];
        if (lives_is_persistent(p, g, s))
            put_rectangle(w, 0, end, p->placement.offset[s], x->bytes, x->kind, graph_name(g, x->name), "", "");
    }
}

/* Writes the transient storages: each free event is paired with the allocation of the same storage.
 * A workspace begins and ends with its node. */
static void put_transient(struct json_writer *w, const struct graph *g, const struct lives *l, const struct times *t)
{
    double *born = mem_alloc(g->storages.n * sizeof *born);
    id *maker = mem_alloc(g->storages.n * sizeof *maker);
    for (uint32_t i = 0; i < l->events.n; i++) {
        const struct lives_event *v = &l->events.at[i];
        const double *at = t->at[v->program] + v->position;
        if (v->birth && v->storage) {
            born[v->storage] = at[0];
            maker[v->storage] = v->node;
        }
        if (v->birth) continue;
        id producer = v->storage ? maker[v->storage] : v->node;
        const struct node *n = node_at(g, producer);
        put_rectangle(w, v->storage ? born[v->storage] : at[0], at[1], v->offset, v->bytes, lives_kind(g, v),
                      lives_name(g, v), op_table[n->op].name,
                      n->scope ? graph_name(g, g->scopes.at[n->scope].name) : "");
    }
    mem_free(born);
    mem_free(maker);
}

static const char script[] =
    "const C=document.getElementById('arena'),T=document.getElementById('tip'),X=C.getContext('2d');"
    "let v,hot;const all=()=>{v={t0:0,t1:A.end,a0:0,a1:A.arena}};all();"
    "const css=n=>getComputedStyle(document.documentElement).getPropertyValue(n);"
    "const sx=t=>(t-v.t0)/(v.t1-v.t0)*C.width,sy=a=>C.height-(a-v.a0)/(v.a1-v.a0)*C.height;"
    "const size=b=>{const u=['B','KiB','MiB','GiB'];let i=0;while(b>=1024&&i<3){b/=1024;i++}return b.toFixed(i?2:0)+' "
    "'+u[i]};"
    "const ms=t=>t<1e3?t.toFixed(2)+' ms':(t/1e3).toFixed(2)+' s';"
    "function draw(){const fg=css('--fg'),bg=css('--bg');X.fillStyle=bg;X.fillRect(0,0,C.width,C.height);X.lineWidth=1;"
    "for(const r of A.rects){const x=sx(r[0]),y=sy(r[2]+r[3]),w=Math.max(sx(r[1])-x,.5),h=Math.max(sy(r[2])-y,.3);"
    "if(x>C.width||x+w<0||y>C.height||y+h<0)continue;X.fillStyle=r===hot?fg:A.colours[r[4]];X.fillRect(x,y,w,h);"
    "if(w>3&&h>3){X.globalAlpha=.5;X.strokeStyle=bg;X.strokeRect(x+.5,y+.5,w-1,h-1);X.globalAlpha=1}}"
    "X.strokeStyle=fg;X.setLineDash([4,4]);X.beginPath();X.moveTo(sx(A.update),0);X.lineTo(sx(A.update),C.height);X."
    "stroke();X.setLineDash([])}"
    "function fit(){const "
    "b=C.getBoundingClientRect(),d=window.devicePixelRatio||1;C.width=b.width*d;C.height=b.height*d;draw()}"
    "function at(e){const b=C.getBoundingClientRect(),x=(e.clientX-b.left)/b.width,y=1-(e.clientY-b.top)/b.height;"
    "return[v.t0+x*(v.t1-v.t0),v.a0+y*(v.a1-v.a0)]}"
    "function find(t,a){for(let i=A.rects.length-1;i>=0;i--){const "
    "r=A.rects[i];if(r[0]<=t&&t<=r[1]&&r[2]<=a&&a<r[2]+r[3])return r}}"
    "let drag;function move(e){const[t,a]=at(e);if(drag&&e.pointerType==='mouse'){const "
    "dt=drag[0]-t,da=drag[1]-a;v.t0+=dt;v.t1+=dt;v.a0+=da;v.a1+=da;draw();return}"
    "hot=find(t,a);draw();const r=hot;if(!r){T.textContent='free at '+ms(t)+', address '+size(a);return}"
    "T.textContent=r[5]+': '+size(r[3])+' ('+r[3]+' bytes) at '+r[2]+', '+A.kinds[r[4]]+(r[6]?', produced by "
    "'+r[6]+(r[7]?' of '+r[7]:'')+"
    "', '+ms(r[0])+' to '+ms(r[1]):', persistent')}"
    "C.onpointermove=move;C.onpointerdown=e=>{drag=at(e);if(e.pointerType!=='mouse')move(e)};window.onpointerup=()=>"
    "drag=null;C.ondblclick=()=>{all();draw()};"
    "C.onwheel=e=>{e.preventDefault();const[t,a]=at(e),f=e.deltaY<0?.8:1.25;"
    "v.t0=t-(t-v.t0)*f;v.t1=t+(v.t1-t)*f;v.a0=a-(a-v.a0)*f;v.a1=a+(v.a1-a)*f;draw()};window.onresize=fit;"
    "matchMedia('(prefers-color-scheme:dark)').onchange=draw;fit();";

static void put_legend(struct text *out, const uint64_t *shown)
{
    text_printf(out, "<p class='chips'>");
    for (int k = KIND_PARAM; k < KIND_COUNT; k++)
        if (shown[k])
            text_printf(out, "<span><i class='chip' style='background:%s'></i>%s</span>\n",
                        page_kind_colour(kind_name(k)), kind_name(k));
    text_printf(out, "</p>\n");
}

void arena_draw(const struct plan *p, const struct graph *g, const struct lives *l, const double *seconds,
                struct text *out)
{
    struct times t = make_times(g, seconds);
    struct json_writer w = {.out = out};
    uint64_t shown[KIND_COUNT];
    memcpy(shown, l->persistent, sizeof shown);
    for (uint32_t i = 0; i < l->events.n; i++) shown[lives_kind(g, &l->events.at[i])] = 1;
    text_printf(out, "<h2>Memory arena</h2>\n<p>The x axis is the time of one step, the y axis the address. Each "
                     "rectangle is a tensor. The dashed line is the start of "
                     "the optimizer update. Point at a rectangle to see its name; scroll to zoom, drag to pan, "
                     "double-click to reset.</p>\n");
    put_legend(out, shown);
    text_printf(
        out,
        "<canvas id='arena'></canvas>\n<p id='tip' class='dim' style='min-height:3em'>&nbsp;</p>\n<script>const A=");
    json_begin_map(&w, NULL);
    json_put_number(&w, "end", 1e3 * t.end);
    json_put_number(&w, "update", 1e3 * t.update);
    json_put_uint(&w, "arena", plan_arena(p));
    json_begin_list(&w, "kinds");
    for (int k = 0; k < KIND_COUNT; k++) json_put_string(&w, NULL, k ? kind_name(k) : "");
    json_end(&w);
    json_begin_list(&w, "colours");
    for (int k = 0; k < KIND_COUNT; k++) json_put_string(&w, NULL, k ? page_kind_colour(kind_name(k)) : "");
    json_end(&w);
    json_begin_list(&w, "rects");
    put_persistent(&w, p, g, t.end);
    put_transient(&w, g, l, &t);
    json_end(&w);
    json_end(&w);
    text_printf(out, ";\n%s</script>\n", script);
    free_times(&t);
}

void arena_curve(const struct graph *g, const struct lives *l, const double *seconds, struct text *out)
{
    struct times t = make_times(g, seconds);
    struct series s = {.name = "live"};
    const struct series *drawn = &s;
    /* Each point is the maximum of a time slice, so that a short peak stays visible. */
    const bool long_step = t.end >= 10;
    double slice = t.end / CURVE_POINTS, border = slice, most = 0;
    FOR_STEP_PROGRAMS(p) {
        uint64_t *alive = lives_by_position(l, g, p);
        for (uint32_t k = 0; k < g->order[p].nodes.n; k++) {
            double sum = 0;
            for (int kind = 0; kind < KIND_COUNT; kind++) sum += (double)alive[k * KIND_COUNT + (uint32_t)kind];
            if (sum > most) most = sum;
            if (t.at[p][k + 1] < border) continue;
            vec_push(&s.x, (long_step ? 1 : 1e3) * t.at[p][k]);
            vec_push(&s.y, most / (1 << 20));
            most = 0;
            while (border <= t.at[p][k + 1]) border += slice;
        }
        mem_free(alive);
    }
    curve_draw(out, "live memory during a step, MiB", long_step ? "s" : "ms", &drawn, 1);
    vec_free(&s.x);
    vec_free(&s.y);
    free_times(&t);
}

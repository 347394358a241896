/*
 * foreign_memory.c: facts of other programs about memory: precision, recomputation, what is divided among ranks and
 * what is offloaded.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "config/foreign_rows.h"
#include "io/yaml.h"

/* --- precision ------------------------------------------------------------------------------- */

/* "f32", "bf16" or "f16" for a dtype of torch; NULL: auto and others. */
static const char *dtype_word(const struct foreign_entry *dtype)
{
    static const char *const words[][2] = {{"bfloat16", "bf16"}, {"bf16", "bf16"}, {"float16", "f16"}, {"fp16", "f16"}, {"half", "f16"}, {"float32", "f32"}, {"fp32", "f32"}, {"float", "f32"}};
    const char *text = foreign_text(dtype);
    if (!strncmp(text, "torch.", 6)) text += 6;
    for (size_t i = 0; i < COUNT(words); i++)
        if (!strcmp(text, words[i][0])) return words[i][1];
    return NULL;
}

static bool is_dtype(const struct foreign_entry *entry, const char *word)
{
    return dtype_word(entry) && !strcmp(dtype_word(entry), word);
}

struct precision {
    const char *word; /* NULL: nothing says anything */
    const struct foreign_entry *entry;
};

/* Another statement about the precision: it must agree with the one before. */
static void say(struct foreign_work *w, struct precision *p, const char *text, const struct foreign_entry *entry)
{
    if (p->word && strcmp(p->word, text)) foreign_refuse(w, entry, "it asks for %s, but %s (%s:%u) asks for %s; give one of them", text, p->entry->key, p->entry->file, p->entry->line, p->word);
    *p = (struct precision){text, entry};
}

/* mixed_precision of Accelerate and scripts: a word, or true, which says no more than that there is one. */
static void say_mixed(struct foreign_work *w, struct precision *p, const struct foreign_entry *mixed)
{
    const char *text = dtype_word(mixed);
    if (!mixed || foreign_off(mixed->value)) return;
    if (!text || !strcmp(text, "f32"))
        foreign_refuse(w, mixed, "found %.100s, and Plimsoll has only fp16 and bf16", foreign_text(mixed));
    else say(w, p, text, mixed);
}

/* torch.autocast: f16 unless a dtype says bf16; DeepSpeed's own has bf16 unless its dtype says otherwise. */
static void say_amp(struct foreign_work *w, struct precision *p, const struct foreign_entry *amp)
{
    const struct foreign_entry *cast = foreign_given(w, HOW_AUTOCAST_DTYPE);
    if (p->word || !foreign_true(w, amp)) return;
    if (amp->program == PROGRAM_ds) say(w, p, is_dtype(cast, "f16") ? "f16" : "bf16", amp);
    else say(w, p, is_dtype(foreign_given(w, HOW_DTYPE), "bf16") ? "bf16" : "f16", amp);
}

/* Axolotl's bf16 is true, false, full or auto; ms-swift's switch follows torch_dtype. */
static void say_own(struct foreign_work *w, struct precision *p)
{
    const struct foreign_entry *axolotl = foreign_pick(w, HOW_AXOLOTL_BF16), *swift = foreign_pick(w, HOW_SWIFT_DTYPE);
    const char *text = foreign_text(axolotl);
    if (axolotl && !strcmp(text, "full")) say(w, p, "bf16-pure", axolotl);
    else if (axolotl && !strcmp(text, "auto")) *p = p->word ? *p : (struct precision){"auto", axolotl};
    else if (axolotl && foreign_true(w, axolotl)) say(w, p, "bf16", axolotl);
    if (!swift || p->word) return;
    if (!dtype_word(swift))
        foreign_refuse(w, swift, "found %.100s, expected bfloat16, float16 or float32", foreign_text(swift));
    else say(w, p, is_dtype(swift, "bf16") ? "bf16" : "f16", swift);
}

/* What the switches say; a default counts only where no other switch is on. */
static struct precision switches(struct foreign_work *w)
{
    struct precision p = {0};
    const struct foreign_entry *bf16 = foreign_pick(w, HOW_BF16), *fp16 = foreign_pick(w, HOW_FP16),
                               *pure = foreign_given(w, HOW_PURE_BF16);
    if (foreign_true(w, pure)) say(w, &p, "bf16-pure", pure);
    else if (bf16 && bf16->given && foreign_true(w, bf16)) say(w, &p, "bf16", bf16);
    if (fp16 && fp16->given && foreign_true(w, fp16)) say(w, &p, "f16", fp16);
    say_mixed(w, &p, foreign_given(w, HOW_MIXED));
    say_amp(w, &p, foreign_pick(w, HOW_AMP));
    say_own(w, &p);
    if (!p.word && bf16 && !bf16->given && foreign_true(w, bf16)) say(w, &p, "bf16", bf16);
    return p;
}

/* Without a switch the weights are computed with as they are loaded: in f32 unless the dtype says otherwise. */
static struct precision unswitched(struct foreign_work *w)
{
    const struct foreign_entry *dtype = foreign_given(w, HOW_DTYPE), *amp = foreign_given(w, HOW_AMP), *fp16 = foreign_pick(w, HOW_FP16), *bf16 = foreign_pick(w, HOW_BF16);
    const char *text = dtype_word(dtype);
    if (text) return (struct precision){!strcmp(text, "bf16") ? "bf16-pure" : text, dtype};
    if (amp) return (struct precision){"f32", amp};
    if (bf16 || fp16) return (struct precision){"f32", bf16 ? bf16 : fp16};
    return (struct precision){0};
}

/* Whether DeepSpeed or FSDP keeps master weights. */
static bool has_masters(struct foreign_work *w)
{
    const struct foreign_entry *fsdp = foreign_given(w, HOW_FSDP), *type = foreign_given(w, HOW_DISTRIBUTED),
                               *swift = foreign_given(w, HOW_SWIFT_DEEPSPEED);
    return foreign_has(w, PROGRAM_ds) || foreign_given(w, HOW_STAGE) || (fsdp && !foreign_off(fsdp->value)) ||
           (swift && !foreign_off(swift->value)) || !strcmp(foreign_text(type), "FSDP") ||
           !strcmp(foreign_text(type), "DEEPSPEED");
}

/* A Trainer updates weights as they are loaded: in bf16 there are no master weights, unless DeepSpeed or FSDP keeps
 * them. An adapter is f32 in any case, and LLaMA-Factory loads what it trains in f32. */
static bool is_pure(struct foreign_work *w, const struct precision *p)
{
    const bool switched = !strcmp(p->word, "bf16") || !strcmp(p->word, "auto");
    const bool by_dtype =
        is_dtype(foreign_given(w, HOW_DTYPE), "bf16") && (foreign_has(w, PROGRAM_hf) || foreign_has(w, PROGRAM_trl));
    const bool by_switch =
        foreign_has(w, PROGRAM_llava) || foreign_has(w, PROGRAM_axolotl) || foreign_has(w, PROGRAM_swift);
    return switched && (by_dtype || by_switch) && !foreign_has(w, PROGRAM_lf) && !has_masters(w) &&
           !foreign_asks_for_lora(w);
}

static void put_scale(struct foreign_work *w, bool scaled)
{
    const struct foreign_entry *power = foreign_pick(w, HOW_SCALE_POWER), *window = foreign_pick(w, HOW_SCALE_WINDOW);
    if (!scaled) {
        foreign_leave(w, power, "only f16 has a loss scale");
        foreign_leave(w, window, "only f16 has a loss scale");
        return;
    }
    if (power)
        foreign_put(w, "train.loss_scale", value_number(&w->f->memory, ldexp(1, (int)foreign_whole(w, power, 0, 40))),
                    power, NULL);
    if (window) foreign_put(w, "train.scale_window", value_copy(&w->f->memory, window->value), window, NULL);
}

/* Sets memory.precision. A dtype beside a switch decides only whether there are master weights. */
static void put_precision(struct foreign_work *w, struct precision *p, bool switched)
{
    const struct foreign_entry *dtype = foreign_given(w, HOW_DTYPE), *from = dtype ? dtype : p->entry;
    if (switched && is_pure(w, p)) {
        p->word = "bf16-pure";
        foreign_put(
            w, "memory.precision", foreign_word(w, p->word), from,
            bump_format(&w->f->memory, "%s: all weights are trained in bf16, without master weights", from->key));
        return;
    }
    if (switched)
        foreign_leave(w, dtype, "memory.precision follows the switches of mixed precision; master weights are f32");
    foreign_put(w, "memory.precision", foreign_word(w, p->word), p->entry, NULL);
}

static void memory_precision(struct foreign_work *w)
{
    const struct foreign_entry *tf32 = foreign_given(w, HOW_TF32);
    struct precision p = switches(w);
    const bool switched = p.word;
    if (foreign_failed(w)) return;
    if (!switched) p = unswitched(w);
    if (!p.word) return;
    put_precision(w, &p, switched);
    put_scale(w, !strcmp(p.word, "f16"));
    if (!tf32) return;
    if (!strcmp(foreign_text(tf32), "auto") || !foreign_true(w, tf32) || strcmp(p.word, "f32"))
        foreign_leave(w, tf32, "it concerns products of f32, which are computed in f32");
    else
        foreign_refuse(w, tf32, "products of f32 are computed in f32, not in TF32: set it to false, or use bf16");
}

/* --- recomputation --------------------------------------------------------------------------- */

/* Adds {match: [part], recompute: how} to memory.modules. */
static void add_module(struct foreign_work *w, struct value **rules, const char *part, const char *how)
{
    struct value *rule = value_new(&w->f->memory, VALUE_MAP), *match = value_new(&w->f->memory, VALUE_LIST);
    if (!*rules) *rules = value_new(&w->f->memory, VALUE_LIST);
    value_append(&w->f->memory, match, foreign_word(w, part));
    value_put(&w->f->memory, rule, "match", match);
    value_put(&w->f->memory, rule, "recompute", foreign_word(w, how));
    value_append(&w->f->memory, *rules, rule);
}

/* Parts that are recomputed, or are not, apart from the others. */
static void recompute_parts(struct foreign_work *w, bool all)
{
    const struct foreign_entry *language = foreign_given(w, HOW_RECOMPUTE_LANGUAGE),
                               *tower = foreign_given(w, HOW_RECOMPUTE_TOWER),
                               *every = foreign_given(w, HOW_TOWER_EVERY);
    const bool on = !tower || foreign_true(w, tower);
    struct value *rules = NULL;
    const char *how = NULL;
    if (every && on) how = bump_format(&w->f->memory, "every:%lld", (long long)foreign_whole(w, every, 1, 4096));
    else if (tower && on != all) how = on ? "all" : "none";
    if (language && foreign_true(w, language)) add_module(w, &rules, "language_model", "all");
    if (how) add_module(w, &rules, "vision_tower", how);
    if (rules) foreign_put(w, "memory.modules", rules, !how ? language : every ? every : tower, NULL);
}

/* Every Nth block, a part of the blocks, or segments. */
static bool recompute_some(struct foreign_work *w)
{
    const struct foreign_entry *every = foreign_given(w, HOW_RECOMPUTE_EVERY),
                               *ratio = foreign_given(w, HOW_RECOMPUTE_RATIO),
                               *segments = foreign_given(w, HOW_RECOMPUTE_SEGMENTS);
    struct bump *b = &w->f->memory;
    if (every)
        foreign_put(w, "memory.recompute",
                    foreign_word(w, bump_format(b, "every:%lld", (long long)foreign_whole(w, every, 1, 4096))), every,
                    NULL);
    else if (ratio)
        foreign_put(w, "memory.recompute", foreign_word(w, bump_format(b, "ratio:%g", foreign_number(w, ratio))), ratio,
                    NULL);
    else if (segments)
        foreign_put(w, "memory.recompute",
                    foreign_word(w, bump_format(b, "segments:%lld", (long long)foreign_whole(w, segments, 1, 4096))),
                    segments, NULL);
    return every || ratio || segments;
}

static bool is_offload(const struct foreign_entry *entry) { return entry && !strcmp(foreign_text(entry), "offload"); }

/* Returns the entry that asks for all blocks; NULL: none does. */
static const struct foreign_entry *recomputes_all(struct foreign_work *w, const struct foreign_entry *on,
                                                  const struct foreign_entry *off)
{
    const struct foreign_entry *cpu = foreign_any(w, HOW_CPU_CHECKPOINTING), *given;
    if (is_offload(on)) return on;
    if (cpu) return cpu;
    if (off && (off->given || !on || !on->given)) return foreign_true(w, off) ? NULL : off;
    if ((given = foreign_any(w, HOW_RECOMPUTE))) return given;
    return on && !on->given && foreign_true(w, on) ? on : NULL;
}

static void memory_recompute(struct foreign_work *w)
{
    const struct foreign_entry *on = foreign_pick(w, HOW_RECOMPUTE), *off = foreign_pick(w, HOW_NO_RECOMPUTE),
                               *all = recomputes_all(w, on, off), *given = off && off->given ? off : on;
    recompute_parts(w, all != NULL);
    if (recompute_some(w)) return;
    if (all) foreign_put(w, "memory.recompute", foreign_word(w, "all"), all, NULL);
    else if (given && given->given) foreign_put(w, "memory.recompute", foreign_word(w, "auto"), given, NULL);
}

/* --- ranks ----------------------------------------------------------------------------------- */

static void put_shard(struct foreign_work *w, const char *level, bool groups, const struct foreign_entry *entry)
{
    if (!config_given(w->c, KEY_parallel_shard)) foreign_put(w, "parallel.shard", foreign_word(w, level), entry, NULL);
    if (groups && !config_given(w->c, KEY_parallel_group))
        foreign_put(w, "parallel.group", foreign_word(w, "host"), entry, NULL);
}

/* "full_shard auto_wrap offload", a list of such words, or true. *offload: it says offload. */
static void read_fsdp(struct foreign_work *w, const struct foreign_entry *fsdp, bool *offload)
{
    static const char *const levels[][2] = {{"full_shard", "weights"},
                                            {"shard_grad_op", "gradients"},
                                            {"no_shard", "none"},
                                            {"hybrid_shard", "weights"},
                                            {"hybrid_shard_zero2", "gradients"}};
    struct text all = {0};
    char word[64];
    const char *level = NULL;
    bool groups = false;
    for (uint32_t i = 0; fsdp->value->kind == VALUE_LIST && i < fsdp->value->count; i++)
        text_printf(&all, "%s ", fsdp->value->items[i]->text ? fsdp->value->items[i]->text : "");
    if (fsdp->value->kind == VALUE_BOOL) text_printf(&all, "full_shard");
    else text_printf(&all, "%s", foreign_text(fsdp));
    for (const char *s = all.at; *s;) {
        const size_t n = strcspn(s, " ,");
        snprintf(word, sizeof word, "%.*s", (int)n, s);
        s += n + strspn(s + n, " ,");
        const bool known = !strcmp(word, "auto_wrap") || !strcmp(word, "offload") || !*word;
        *offload |= !strcmp(word, "offload");
        size_t k = 0;
        while (k < COUNT(levels) && strcmp(levels[k][0], word)) k++;
        if (k < COUNT(levels)) level = levels[k][1], groups = !strncmp(word, "hybrid", 6);
        else if (!known)
            foreign_refuse(w, fsdp,
                           "found %.60s, expected full_shard, shard_grad_op, no_shard, hybrid_shard, "
                           "hybrid_shard_zero2, offload or auto_wrap",
                           word);
    }
    text_free(&all);
    if (level) put_shard(w, level, groups, fsdp);
}

static void read_distributed(struct foreign_work *w)
{
    const struct foreign_entry *type = foreign_given(w, HOW_DISTRIBUTED);
    const char *word = foreign_text(type);
    static const char *const refused[] = {"MEGATRON_LM", "TP", "XLA", "TPU"};
    for (size_t i = 0; i < COUNT(refused); i++)
        if (!strcmp(word, refused[i]))
            foreign_refuse(w, type,
                           "found %s: ranks divide the batch, on GPUs or CPUs; expected NO, MULTI_GPU, MULTI_CPU, "
                           "DEEPSPEED or FSDP",
                           word);
    if (!strcmp(word, "FSDP")) put_shard(w, "weights", false, type);
}

/* What sums over ranks would give other numbers. */
static void check_sums(struct foreign_work *w)
{
    const struct foreign_entry *dtype = foreign_given(w, HOW_COMMUNICATION),
                               *tokens = foreign_given(w, HOW_TOKENS_ACROSS);
    const bool ranks = foreign_ranks(w) > 1, wide = !dtype || is_dtype(dtype, "f32");
    if (dtype && !wide && ranks)
        foreign_refuse(w, dtype,
                       "gradients are added in the dtype of memory.gradients, f32 unless it is set: remove it");
    if (dtype && (wide || !ranks))
        foreign_leave(w, dtype, wide ? "gradients are added in f32" : "one rank adds nothing");
    if (tokens && !foreign_true(w, tokens) && ranks)
        foreign_refuse(w, tokens, "the loss is divided by the tokens of the whole step, on all ranks: set it to true");
    foreign_leave(w, tokens, "the loss is divided by the tokens of the whole step");
}

/* --- offload --------------------------------------------------------------------------------- */

/* Whether an offload entry is on: a device's name, or true. */
static bool offloads(struct foreign_work *w, const struct foreign_entry *entry)
{
    if (!entry || foreign_off(entry->value)) return false;
    if (!strcmp(foreign_text(entry), "cpu") || !strcmp(foreign_text(entry), "true")) return true;
    foreign_refuse(w, entry, "found %.100s; memory.offload moves to host memory: cpu (on a CPU to a file)",
                   *foreign_text(entry) ? foreign_text(entry) : "no device");
    return false;
}

/* Parts of memory.offload, and the entry that asked for the first. */
struct offloads {
    bool optimizer, weights, activations;
    const struct foreign_entry *from;
};

/* entry: what asks for the part; NULL: nothing. */
static void take(struct offloads *o, bool *part, const struct foreign_entry *entry)
{
    *part |= entry != NULL;
    if (!o->from) o->from = entry;
}

static void put_offload(struct foreign_work *w, const struct offloads *o)
{
    struct text parts = {0};
    if (!o->from) return;
    text_printf(&parts, "%s%s%s", o->optimizer ? "optimizer+masters+" : "", o->weights ? "weights+" : "",
                o->activations ? "activations+" : "");
    parts.at[--parts.n] = 0;
    foreign_put(w, "memory.offload", foreign_word(w, parts.at), o->from, NULL);
    text_free(&parts);
}

/* zero0 to zero3 of ms-swift, zero2_offload and zero3_offload; *stage: -1: no such name. */
static void read_swift(const struct foreign_entry *name, struct offloads *o, int64_t *stage)
{
    const char *text = foreign_text(name);
    if (strncmp(text, "zero", 4) || text[4] < '0' || text[4] > '3' || (text[5] && strcmp(text + 5, "_offload"))) return;
    *stage = text[4] - '0';
    take(o, &o->optimizer, text[5] ? name : NULL);
    take(o, &o->weights, text[5] && *stage == 3 ? name : NULL);
}

static void memory_ranks(struct foreign_work *w)
{
    static const char *const levels[] = {"none", "optimizer", "gradients", "weights"};
    const struct foreign_entry *stage = foreign_given(w, HOW_STAGE),
                               *optimizer = foreign_given(w, HOW_OFFLOAD_OPTIMIZER),
                               *weights = foreign_given(w, HOW_OFFLOAD_PARAM),
                               *recompute = foreign_given(w, HOW_RECOMPUTE), *fsdp = foreign_given(w, HOW_FSDP),
                               *swift = foreign_given(w, HOW_SWIFT_DEEPSPEED);
    struct offloads o = {0};
    int64_t z = foreign_whole(w, stage, 0, 3);
    bool words = false;
    read_swift(swift, &o, &z);
    if ((stage || swift) && !foreign_failed(w)) put_shard(w, levels[z], false, stage ? stage : swift);
    if (fsdp && !foreign_off(fsdp->value)) read_fsdp(w, fsdp, &words);
    read_distributed(w);
    check_sums(w);
    const bool p = offloads(w, weights), a = offloads(w, optimizer);
    if (p && z < 3)
        foreign_refuse(w, weights, "it needs ZeRO stage 3, and the stage is %lld; set the stage to 3, or remove it",
                       (long long)z);
    if (a && z < 1)
        foreign_refuse(w, optimizer, "it needs ZeRO stage 1, 2 or 3, and the stage is 0; set the stage, or remove it");
    take(&o, &o.optimizer, a ? optimizer : NULL);
    take(&o, &o.weights, p ? weights : NULL);
    const struct foreign_entry *whole = words ? fsdp : foreign_any(w, HOW_FSDP_OFFLOAD);
    take(&o, &o.optimizer, whole);
    take(&o, &o.weights, whole);
    take(&o, &o.activations, foreign_any(w, HOW_OFFLOAD_ACTIVATIONS));
    take(&o, &o.activations, foreign_any(w, HOW_CPU_CHECKPOINTING));
    take(&o, &o.activations, is_offload(recompute) ? recompute : NULL);
    put_offload(w, &o);
}

void foreign_memory(struct foreign_work *w)
{
    memory_precision(w);
    memory_recompute(w);
    memory_ranks(w);
}

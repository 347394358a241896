/*
 * memory_facts.c: facts of other programs about memory: precision, recomputation, what is divided
 * among ranks and what is offloaded.
 */
#include <math.h>

#include "config/config_rows.h"
#include "import/import_rows.h"

/* --- precision ------------------------------------------------------------------------------- */

/* Returns "f32", "bf16" or "f16" for a dtype of torch; NULL: auto and others. */
static const char *dtype_word(struct import_work *w, const struct import_entry *dtype)
{
    const char *text = import_text(dtype);
    if (!strncmp(text, "torch.", 6)) text += 6;
    return import_pair(w, "bfloat16=bf16 bf16=bf16 float16=f16 fp16=f16 half=f16 float32=f32 fp32=f32 float=f32", text);
}

static bool is_dtype(struct import_work *w, const struct import_entry *entry, const char *word)
{
    const char *found = dtype_word(w, entry);
    return found && !strcmp(found, word);
}

struct stated {
    const char *word; /* NULL: nothing says anything */
    const struct import_entry *entry;
};

/* Adds another statement about the precision, which must agree with the one before. */
static void say(struct import_work *w, struct stated *p, const char *text, const struct import_entry *entry)
{
    if (p->word && strcmp(p->word, text))
        import_refuse(w, entry, "it asks for %s, but %s (%s:%u) asks for %s; give one of them", text, p->entry->key,
                      p->entry->file, p->entry->line, p->word);
    *p = (struct stated){text, entry};
}

/* Adds mixed_precision of Accelerate and scripts: a word, or true, which says no more than that
 * there is one. */
static void say_mixed(struct import_work *w, struct stated *p, const struct import_entry *mixed)
{
    const char *text = dtype_word(w, mixed);
    if (!mixed || import_off(mixed->value)) return;
    if (!text || !strcmp(text, "f32"))
        import_refuse(w, mixed, "found %.100s, and Plimsoll has only fp16 and bf16", import_text(mixed));
    else say(w, p, text, mixed);
}

/* Adds torch.autocast: f16 unless a dtype says bf16; DeepSpeed's own has bf16 unless its dtype says
 * otherwise. */
static void say_amp(struct import_work *w, struct stated *p, const struct import_entry *amp)
{
    const struct import_entry *cast = import_given(w, HOW_AUTOCAST_DTYPE);
    if (p->word || !import_true(w, amp)) return;
    if (amp->program == PROGRAM_ds) say(w, p, is_dtype(w, cast, "f16") ? "f16" : "bf16", amp);
    else say(w, p, is_dtype(w, import_given(w, HOW_DTYPE), "bf16") ? "bf16" : "f16", amp);
}

/* Adds Axolotl's bf16, which is true, false, full or auto, and ms-swift's switch, which follows
 * torch_dtype. */
static void say_own(struct import_work *w, struct stated *p)
{
    const struct import_entry *axolotl = import_pick(w, HOW_AXOLOTL_BF16), *swift = import_pick(w, HOW_SWIFT_DTYPE);
    const char *text = import_text(axolotl);
    if (axolotl && !strcmp(text, "full")) say(w, p, "bf16-pure", axolotl);
    else if (axolotl && !strcmp(text, "auto")) *p = p->word ? *p : (struct stated){"auto", axolotl};
    else if (axolotl && import_true(w, axolotl)) say(w, p, "bf16", axolotl);
    if (!swift || p->word) return;
    if (!dtype_word(w, swift))
        import_refuse(w, swift, "found %.100s, expected bfloat16, float16 or float32", import_text(swift));
    else say(w, p, is_dtype(w, swift, "bf16") ? "bf16" : "f16", swift);
}

/* Returns the precision of the switches; a default counts only where no other switch is on. */
static struct stated switches(struct import_work *w)
{
    struct stated p = {0};
    const struct import_entry *bf16 = import_pick(w, HOW_BF16), *fp16 = import_pick(w, HOW_FP16),
                              *pure = import_given(w, HOW_PURE_BF16);
    if (import_true(w, pure)) say(w, &p, "bf16-pure", pure);
    else if (bf16 && bf16->given && import_true(w, bf16)) say(w, &p, "bf16", bf16);
    if (fp16 && fp16->given && import_true(w, fp16)) say(w, &p, "f16", fp16);
    say_mixed(w, &p, import_given(w, HOW_MIXED));
    say_amp(w, &p, import_pick(w, HOW_AMP));
    say_own(w, &p);
    if (!p.word && bf16 && !bf16->given && import_true(w, bf16)) say(w, &p, "bf16", bf16);
    return p;
}

/* Returns the precision without a switch: the weights are computed with as they are loaded, in f32
 * unless the dtype says otherwise. */
static struct stated unswitched(struct import_work *w)
{
    const struct import_entry *dtype = import_given(w, HOW_DTYPE), *amp = import_given(w, HOW_AMP),
                              *fp16 = import_pick(w, HOW_FP16), *bf16 = import_pick(w, HOW_BF16);
    const char *text = dtype_word(w, dtype);
    if (text) return (struct stated){!strcmp(text, "bf16") ? "bf16-pure" : text, dtype};
    if (amp) return (struct stated){"f32", amp};
    if (bf16 || fp16) return (struct stated){"f32", bf16 ? bf16 : fp16};
    return (struct stated){0};
}

/* Reports whether DeepSpeed or FSDP keeps master weights. */
static bool has_masters(struct import_work *w)
{
    const struct import_entry *fsdp = import_given(w, HOW_FSDP), *type = import_given(w, HOW_DISTRIBUTED),
                              *swift = import_given(w, HOW_SWIFT_DEEPSPEED);
    return import_has(w, BIT(ds)) || import_given(w, HOW_STAGE) || (fsdp && !import_off(fsdp->value)) ||
           (swift && !import_off(swift->value)) || !strcmp(import_text(type), "FSDP") ||
           !strcmp(import_text(type), "DEEPSPEED");
}

/* Reports whether there are no master weights: a Trainer updates weights as they are loaded, in
 * bf16 too, unless DeepSpeed or FSDP keeps masters. An adapter is f32 in any case, and
 * LLaMA-Factory loads what it trains in f32. */
static bool is_pure(struct import_work *w, const struct stated *p)
{
    const bool switched = !strcmp(p->word, "bf16") || !strcmp(p->word, "auto");
    const bool by_dtype = is_dtype(w, import_given(w, HOW_DTYPE), "bf16") && import_has(w, BIT(hf) | BIT(trl));
    const bool by_switch = import_has(w, BIT(llava) | BIT(axolotl) | BIT(swift));
    return switched && (by_dtype || by_switch) && !import_has(w, BIT(lf)) && !has_masters(w) &&
           !import_asks_for_lora(w);
}

static void put_scale(struct import_work *w, bool scaled)
{
    const struct import_entry *power = import_pick(w, HOW_SCALE_POWER), *window = import_pick(w, HOW_SCALE_WINDOW);
    if (!scaled) {
        import_leave(w, power, "only f16 has a loss scale");
        import_leave(w, window, "only f16 has a loss scale");
        return;
    }
    if (power)
        import_put(w, "train.loss_scale", value_number(w->b, ldexp(1, (int)import_whole(w, power, 0, 40))), power,
                   NULL);
    import_put_value(w, "train.scale_window", window);
}

/* Sets memory.precision. A dtype beside a switch decides only whether there are master weights. */
static void put_precision(struct import_work *w, struct stated *p, bool switched)
{
    const struct import_entry *dtype = import_given(w, HOW_DTYPE), *from = dtype ? dtype : p->entry;
    if (switched && is_pure(w, p)) {
        p->word = "bf16-pure";
        import_put(w, "memory.precision", import_word(w, p->word), from,
                   bump_format(w->b, "%s: all weights are trained in bf16, without master weights", from->key));
        return;
    }
    if (switched)
        import_leave(w, dtype, "memory.precision follows the switches of mixed precision; master weights are f32");
    import_put(w, "memory.precision", import_word(w, p->word), p->entry, NULL);
}

static void memory_precision(struct import_work *w)
{
    const struct import_entry *tf32 = import_given(w, HOW_TF32);
    struct stated p = switches(w);
    const bool switched = p.word;
    if (import_failed(w)) return;
    if (!switched) p = unswitched(w);
    if (!p.word) return;
    put_precision(w, &p, switched);
    put_scale(w, !strcmp(p.word, "f16"));
    if (!tf32) return;
    if (!strcmp(import_text(tf32), "auto") || !import_true(w, tf32) || strcmp(p.word, "f32"))
        import_leave(w, tf32, "it concerns products of f32, which are computed in f32");
    else import_refuse(w, tf32, "products of f32 are computed in f32, not in TF32: set it to false, or use bf16");
}

/* --- recomputation --------------------------------------------------------------------------- */

/* Adds {match: [part], recompute: how} to memory.modules. */
static void add_module(struct import_work *w, struct value **rules, const char *part, const char *how)
{
    struct value *rule = value_new(w->b, VALUE_MAP), *match = value_new(w->b, VALUE_LIST);
    if (!*rules) *rules = value_new(w->b, VALUE_LIST);
    value_append(w->b, match, import_word(w, part));
    value_put(w->b, rule, "match", match);
    value_put(w->b, rule, "recompute", import_word(w, how));
    value_append(w->b, *rules, rule);
}

/* Puts the parts that are recomputed, or are not, apart from the others. */
static void recompute_parts(struct import_work *w, bool all)
{
    const struct import_entry *language = import_given(w, HOW_RECOMPUTE_LANGUAGE),
                              *tower = import_given(w, HOW_RECOMPUTE_TOWER), *every = import_given(w, HOW_TOWER_EVERY);
    const bool on = !tower || import_true(w, tower);
    struct value *rules = NULL;
    const char *how = NULL;
    if (every && on) how = bump_format(w->b, "every:%lld", (long long)import_whole(w, every, 1, 4096));
    else if (tower && on != all) how = on ? "all" : "none";
    if (language && import_true(w, language)) add_module(w, &rules, "language_model", "all");
    if (how) add_module(w, &rules, "vision_tower", how);
    if (rules) import_put(w, "memory.modules", rules, !how ? language : every ? every : tower, NULL);
}

/* Puts recomputation of every Nth block, a part of the blocks, or segments. */
static bool recompute_some(struct import_work *w)
{
    const struct import_entry *every = import_given(w, HOW_RECOMPUTE_EVERY),
                              *ratio = import_given(w, HOW_RECOMPUTE_RATIO),
                              *segments = import_given(w, HOW_RECOMPUTE_SEGMENTS), *some = every ? every : segments;
    const char *how = NULL;
    if (ratio && !every) how = bump_format(w->b, "ratio:%g", import_number(w, some = ratio));
    else if (some)
        how = bump_format(w->b, "%s:%lld", every ? "every" : "segments", (long long)import_whole(w, some, 1, 4096));
    if (how) import_put_word(w, "memory.recompute", how, some);
    return how;
}

static bool is_offload(const struct import_entry *entry) { return entry && !strcmp(import_text(entry), "offload"); }

/* Returns the entry that asks for all blocks; NULL: none does. */
static const struct import_entry *recomputes_all(struct import_work *w, const struct import_entry *on,
                                                 const struct import_entry *off)
{
    const struct import_entry *cpu = import_any(w, HOW_CPU_CHECKPOINTING), *given;
    if (is_offload(on)) return on;
    if (cpu) return cpu;
    if (off && (off->given || !on || !on->given)) return import_true(w, off) ? NULL : off;
    if ((given = import_any(w, HOW_RECOMPUTE))) return given;
    return on && !on->given && import_true(w, on) ? on : NULL;
}

static void memory_recompute(struct import_work *w)
{
    const struct import_entry *on = import_pick(w, HOW_RECOMPUTE), *off = import_pick(w, HOW_NO_RECOMPUTE),
                              *all = recomputes_all(w, on, off), *given = off && off->given ? off : on;
    recompute_parts(w, all != NULL);
    if (recompute_some(w)) return;
    if (all) import_put_word(w, "memory.recompute", "all", all);
    else if (given && given->given) import_put_word(w, "memory.recompute", "auto", given);
}

/* --- ranks ----------------------------------------------------------------------------------- */

static void put_shard(struct import_work *w, const char *level, bool groups, const struct import_entry *entry)
{
    if (!config_given(w->c, KEY_parallel_shard)) import_put_word(w, "parallel.shard", level, entry);
    if (groups && !config_given(w->c, KEY_parallel_group)) import_put_word(w, "parallel.group", "host", entry);
}

/* Reads "full_shard auto_wrap offload", a list of such words, or true. *offload: it says
 * offload. */
static void read_fsdp(struct import_work *w, const struct import_entry *fsdp, bool *offload)
{
    static const char levels[] = "full_shard=weights shard_grad_op=gradients no_shard=none hybrid_shard=weights "
                                 "hybrid_shard_zero2=gradients";
    const char *all = fsdp->value->kind == VALUE_BOOL ? "full_shard" : import_text(fsdp), *level = NULL;
    bool groups = false;
    for (uint32_t i = 0; fsdp->value->kind == VALUE_LIST && i < fsdp->value->count; i++)
        all = bump_format(w->b, "%s %s", all, fsdp->value->items[i]->text ? fsdp->value->items[i]->text : "");
    while (*(all += strspn(all, " ,"))) {
        const char *word = bump_format(w->b, "%.*s", (int)strcspn(all, " ,"), all),
                   *found = import_pair(w, levels, word);
        all += strlen(word);
        *offload |= !strcmp(word, "offload");
        if (found) level = found, groups = !strncmp(word, "hybrid", 6);
        else if (strcmp(word, "auto_wrap") && strcmp(word, "offload"))
            import_refuse(w, fsdp, "found %.60s, expected full_shard, shard_grad_op, no_shard, hybrid_shard, "
                          "hybrid_shard_zero2, offload or auto_wrap", word);
    }
    if (level) put_shard(w, level, groups, fsdp);
}

static void read_distributed(struct import_work *w)
{
    const struct import_entry *type = import_given(w, HOW_DISTRIBUTED);
    const char *word = import_text(type);
    if (config_word_index("MEGATRON_LM|TP|XLA|TPU", word) >= 0)
        import_refuse(w, type, "found %s: ranks divide the batch, on GPUs or CPUs; expected NO, MULTI_GPU, MULTI_CPU, "
                      "DEEPSPEED or FSDP", word);
    if (!strcmp(word, "FSDP")) put_shard(w, "weights", false, type);
}

/* Refuses what would give sums over ranks other numbers. */
static void check_sums(struct import_work *w)
{
    const struct import_entry *dtype = import_given(w, HOW_COMMUNICATION), *tokens = import_given(w, HOW_TOKENS_ACROSS);
    const bool ranks = import_ranks(w) > 1, wide = !dtype || is_dtype(w, dtype, "f32");
    if (dtype && !wide && ranks)
        import_refuse(w, dtype,
                      "gradients are added in the dtype of memory.gradients, f32 unless it is set: remove it");
    if (dtype && (wide || !ranks))
        import_leave(w, dtype, wide ? "gradients are added in f32" : "one rank adds nothing");
    if (tokens && !import_true(w, tokens) && ranks)
        import_refuse(w, tokens, "the loss is divided by the tokens of the whole step, on all ranks: set it to true");
    import_leave(w, tokens, "the loss is divided by the tokens of the whole step");
}

/* --- offload --------------------------------------------------------------------------------- */

/* Reports whether an offload entry is on: a device's name, or true. */
static bool offloads(struct import_work *w, const struct import_entry *entry)
{
    if (!entry || import_off(entry->value)) return false;
    if (!strcmp(import_text(entry), "cpu") || !strcmp(import_text(entry), "true")) return true;
    import_refuse(w, entry, "found %.100s; memory.offload moves to host memory: cpu (on a CPU to a file)",
                  *import_text(entry) ? import_text(entry) : "no device");
    return false;
}

/* Parts of memory.offload, and the entry that asked for the first. */
struct offloads {
    bool optimizer, weights, activations;
    const struct import_entry *from;
};

/* Takes a part if an entry asks for it; NULL: nothing does. */
static void take(struct offloads *o, bool *part, const struct import_entry *entry)
{
    *part |= entry != NULL;
    if (!o->from) o->from = entry;
}

static void put_offload(struct import_work *w, const struct offloads *o)
{
    char *parts = bump_format(w->b, "%s%s%s", o->optimizer ? "+optimizer+masters" : "", o->weights ? "+weights" : "",
                              o->activations ? "+activations" : "");
    if (o->from) import_put_word(w, "memory.offload", parts + 1, o->from);
}

/* Reads zero0 to zero3 of ms-swift, zero2_offload and zero3_offload; *stage: -1: no such name. */
static void read_swift(const struct import_entry *name, struct offloads *o, int64_t *stage)
{
    const char *text = import_text(name);
    if (strncmp(text, "zero", 4) || text[4] < '0' || text[4] > '3' || (text[5] && strcmp(text + 5, "_offload"))) return;
    *stage = text[4] - '0';
    take(o, &o->optimizer, text[5] ? name : NULL);
    take(o, &o->weights, text[5] && *stage == 3 ? name : NULL);
}

static void memory_ranks(struct import_work *w)
{
    static const char *const levels[] = {"none", "optimizer", "gradients", "weights"};
    const struct import_entry *stage = import_given(w, HOW_STAGE), *optimizer = import_given(w, HOW_OFFLOAD_OPTIMIZER),
                              *weights = import_given(w, HOW_OFFLOAD_PARAM),
                              *recompute = import_given(w, HOW_RECOMPUTE), *fsdp = import_given(w, HOW_FSDP),
                              *swift = import_given(w, HOW_SWIFT_DEEPSPEED);
    struct offloads o = {0};
    int64_t z = import_whole(w, stage, 0, 3);
    bool words = false;
    read_swift(swift, &o, &z);
    if ((stage || swift) && !import_failed(w)) put_shard(w, levels[z], false, stage ? stage : swift);
    if (fsdp && !import_off(fsdp->value)) read_fsdp(w, fsdp, &words);
    read_distributed(w);
    check_sums(w);
    const bool p = offloads(w, weights), a = offloads(w, optimizer);
    if (p && z < 3)
        import_refuse(w, weights, "it needs ZeRO stage 3, and the stage is %lld; set the stage to 3, or remove it",
                      (long long)z);
    if (a && z < 1)
        import_refuse(w, optimizer, "it needs ZeRO stage 1, 2 or 3, and the stage is 0; set the stage, or remove it");
    take(&o, &o.optimizer, a ? optimizer : NULL);
    take(&o, &o.weights, p ? weights : NULL);
    const struct import_entry *whole = words ? fsdp : import_any(w, HOW_FSDP_OFFLOAD);
    take(&o, &o.optimizer, whole);
    take(&o, &o.weights, whole);
    take(&o, &o.activations, import_any(w, HOW_OFFLOAD_ACTIVATIONS));
    take(&o, &o.activations, import_any(w, HOW_CPU_CHECKPOINTING));
    take(&o, &o.activations, is_offload(recompute) ? recompute : NULL);
    put_offload(w, &o);
}

void import_memory(struct import_work *w)
{
    memory_precision(w);
    memory_recompute(w);
    memory_ranks(w);
}

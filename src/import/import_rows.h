/*
 * import_rows.h: the rows of import.def and ignored.def as data, only for the files of this folder.
 */
#pragma once

#include "import/import.h"
#include "io/value.h"

enum import_program {
#define PROGRAM(id, ...) PROGRAM_##id,
#include "import/import.def"
    IMPORT_PROGRAMS
};

/* How a value becomes ours; from HOW_MICRO on they are facts, which import.c combines. */
enum import_how {
    HOW_VALUE, HOW_POSITIVE, HOW_WORD, HOW_IF_TRUE, HOW_NONE, HOW_ONLY, HOW_ONLY_TRUE, HOW_ASK, HOW_MICRO,
    HOW_ACCUMULATION, HOW_BATCH, HOW_RANKS, HOW_NODES, HOW_FIND_BATCH, HOW_EPOCHS, HOW_STEPS, HOW_SCHEDULE,
    HOW_SCHEDULE_OPTIONS, HOW_WARMUP, HOW_WARMUP_RATIO, HOW_SWIFT_RATE, HOW_DS_SCHEDULE, HOW_DS_WARMUP,
    HOW_DS_WARMUP_TYPE, HOW_DS_MAX_RATE, HOW_DS_MIN_RATE, HOW_DS_MIN_RATIO, HOW_DS_COSINE_FLOOR, HOW_DECAY, HOW_BETAS,
    HOW_OPTIMIZER, HOW_DS_OPTIMIZER, HOW_TORCH_ADAM, HOW_ADAM_W_MODE, HOW_BF16, HOW_FP16, HOW_PURE_BF16, HOW_AMP,
    HOW_MIXED, HOW_DTYPE, HOW_AUTOCAST_DTYPE, HOW_SWIFT_DTYPE, HOW_AXOLOTL_BF16, HOW_TF32, HOW_SCALE_POWER,
    HOW_SCALE_WINDOW, HOW_RECOMPUTE, HOW_NO_RECOMPUTE, HOW_RECOMPUTE_EVERY, HOW_RECOMPUTE_RATIO,
    HOW_RECOMPUTE_SEGMENTS, HOW_RECOMPUTE_LANGUAGE, HOW_RECOMPUTE_TOWER, HOW_TOWER_EVERY, HOW_STAGE, HOW_FSDP,
    HOW_DISTRIBUTED, HOW_SWIFT_DEEPSPEED, HOW_COMMUNICATION, HOW_TOKENS_ACROSS, HOW_OFFLOAD_OPTIMIZER,
    HOW_OFFLOAD_PARAM, HOW_OFFLOAD_ACTIVATIONS, HOW_FSDP_OFFLOAD, HOW_CPU_CHECKPOINTING, HOW_EVAL_STRATEGY,
    HOW_EVAL_STEPS, HOW_SAVE_STRATEGY, HOW_SAVE_STEPS, HOW_LOGGING_STEPS, HOW_KEEP, HOW_BEST, HOW_FINETUNING,
    HOW_ADAPTER, HOW_USE_LORA, HOW_LORA_RANK, HOW_LORA_ALPHA, HOW_LORA_DROPOUT, HOW_LORA_BIAS, HOW_LORA_TARGET,
    HOW_LORA_LINEAR, HOW_LORA_SAVE, HOW_LORA_RSLORA, HOW_LORA_DORA, HOW_LORA_PATH, HOW_BITS, HOW_BITS4,
    HOW_DOUBLE_QUANT, HOW_FREEZE_TOWER, HOW_FREEZE_PROJECTOR, HOW_FREEZE_LANGUAGE, HOW_FREEZE_IMAGES,
    HOW_TUNE_PROJECTOR, HOW_PROJECTOR_RATE, HOW_TOWER_RATE, HOW_TRAIN_FILE, HOW_VALIDATION_FILE, HOW_DATASET,
    HOW_EVAL_DATASET, HOW_DATASET_DIR, HOW_DATASET_NAME, HOW_SWIFT_DATASET, HOW_SWIFT_VALIDATION,
    HOW_AXOLOTL_DATASETS, HOW_AXOLOTL_TESTS, HOW_MAX_SAMPLES, HOW_VAL_SIZE, HOW_VAL_PERCENT, HOW_PACKING,
    HOW_NO_SHUFFLE, HOW_SAMPLING, HOW_SWIFT_LENGTH, HOW_TRAIN_ON_ASSISTANT, HOW_TRAIN_ON_PROMPT, HOW_TRAIN_ON_LAST,
    HOW_TEMPLATE, HOW_AXOLOTL_TEMPLATE, HOW_AXOLOTL_TOKENS, HOW_AXOLOTL_PLUGINS, HOW_DATA_ROOT, HOW_ANNOTATIONS,
    HOW_MAX_FRAMES, HOW_DO_TRAIN, HOW_DO_OTHER, HOW_DEEPSPEED, HOW_CONFIG_FILE,
};

/* The keys of a program that mean the same: a|b. */
struct import_row {
    enum import_program program;
    const char *key, *standard;
    enum import_how how;
    const char *ours, *detail;
};
typedef VEC(struct import_row) import_rows;

/* A value of a file, or the program's default. */
struct import_entry {
    const struct import_row *row;
    enum import_program program; /* that was read; the row may be of its parent */
    const char *key;              /* as in the file */
    const struct value *value;
    const char *file;
    uint32_t line;
    bool given;                   /* not a default */
    bool automatic;               /* "auto" of a DeepSpeed file: neither a value nor a default */
};

/* --- the table (key_table.c) ---------------------------------------------------------------- */

/* Returns the program's name for messages. */
const char *import_name(enum import_program p);
/* Returns why files of the program are not read, and what to do; "": they are read. */
const char *import_refused(enum import_program p);
/* Returns the rows of all programs, read from the tables by the first call. */
const import_rows *import_all_rows(void);
/* Returns the row of a key of the program or its parent; NULL: none. A key without effect has
 * HOW_NONE, and its detail says why. */
const struct import_row *import_find(enum import_program p, const char *key);
/* Returns the most similar key of the program, in `b`; NULL: none is near. */
const char *import_nearest(enum import_program p, const char *key, struct bump *b);
/* Reports whether the key is in a section of which the program knows keys. */
bool import_in_section(enum import_program p, const char *key);
/* Calls `visit` for each key of a document: a map without a row of its own is walked. Stops at a
 * nonzero result. */
typedef int import_visit(void *to, const struct import_row *row, const char *key, const struct value *v);
int import_walk(enum import_program p, const struct value *map, struct bump *b, import_visit *visit, void *to);
/* Returns the program that knows most keys of a document, of several one with its bit in `read`, or
 * else the first; IMPORT_PROGRAMS: none knows one. */
enum import_program import_guess(const struct value *map, unsigned read);
/* Appends the defaults of the programs that were read. */
void import_add_defaults(struct import *f);

/* Adds the keys of a map (import_read.c). `p` is IMPORT_PROGRAMS where the keys decide. */
int import_add(struct import *f, enum import_program p, const struct value *map, const char *file, struct error *e);
/* Reads a file that another one names: as it is, or from that file's folder or one above it. */
int import_follow(struct import *f, enum import_program p, const char *path, const char *from, struct error *e);
/* Returns the path of a file that another file names, in f->memory; NULL: it does not exist. */
const char *import_locate(struct import *f, const char *path, const char *from);

/* A part of a file with keys of one program: a dictionary, the keyword arguments of a call, the
 * options of a command, or a file of settings that is read in its place. */
struct import_document {
    enum import_program program; /* IMPORT_PROGRAMS: its keys tell */
    const struct value *map;
    const char *file;            /* instead of a map, named on this line; else NULL */
    uint32_t line;
};
typedef VEC(struct import_document) import_documents;
/* Reports whether the text is a shell script rather than YAML; import_read_command appends the
 * arguments of its training command, in f->memory (command_line.c). */
bool import_is_command(const char *text, const char *name);
int import_read_command(struct import *f, const char *text, const char *name, import_documents *out, struct error *e);
/* Reports whether the text is made of Python's assignments and calls; import_read_python appends
 * what they say, in f->memory (python.c). */
bool import_is_python(const char *text);
int import_read_python(struct import *f, const char *text, const char *name, import_documents *out, struct error *e);

/* What import_apply works with (entries.c). The first error stays in f->error, and nothing is set
 * after it. */
struct import_work {
    struct import *f;
    struct config *c;
    struct bump *b; /* that of f */
};
/* Returns the value of a fact, of which a given one comes before a default and the arguments of a
 * script before those of its launcher; NULL: none. A DeepSpeed file that says another value than
 * the program that uses it is an error. */
const struct import_entry *import_pick(struct import_work *w, enum import_how how);
/* Does as import_pick, but for the keys that become the key `ours`, one for one. */
const struct import_entry *import_pick_for(struct import_work *w, const char *ours);
/* Does as import_pick, but returns NULL for a default. */
const struct import_entry *import_given(struct import_work *w, enum import_how how);
/* Returns the first given entry of the fact that is true; NULL: none. */
const struct import_entry *import_any(struct import_work *w, enum import_how how);
/* Reports whether a DeepSpeed file says "auto" for a key. */
bool import_automatic(const struct import_work *w, const char *key);
/* The ranks that a file says it is for, else those of this run. */
int64_t import_ranks(struct import_work *w);
bool import_failed(const struct import_work *w);
/* Sets a key of ours; `from` is printed behind it. NULL: the entry's key and where it is. */
void import_put(struct import_work *w, const char *ours, struct value *v, const struct import_entry *entry,
                const char *from);
/* The same with the entry's value, unless the entry is NULL, or with a word. */
void import_put_value(struct import_work *w, const char *ours, const struct import_entry *entry);
void import_put_word(struct import_work *w, const char *ours, const char *word, const struct import_entry *entry);
/* Lists a key of theirs as without effect, if it was given. */
void import_leave(struct import_work *w, const struct import_entry *entry, const char *why);
/* Asks what a given key of theirs becomes; a value of the key `ours` is the answer. */
void import_ask(struct import_work *w, const struct import_entry *entry, const char *ours, const char *question);
/* Reports an error at an entry. */
void import_refuse(struct import_work *w, const struct import_entry *entry, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Return the value as true or false, as a number, or as a whole number within bounds; false, 0 and
 * `low` with an error for others and without one for NULL. */
bool import_true(struct import_work *w, const struct import_entry *entry);
double import_number(struct import_work *w, const struct import_entry *entry);
int64_t import_whole(struct import_work *w, const struct import_entry *entry, int64_t low, int64_t high);
const char *import_text(const struct import_entry *entry); /* "" for NULL, lists and maps */
/* Tells whether a file of one of these programs was read: import_has(w, BIT(trl) | BIT(lf)). */
#define BIT(program) (1u << PROGRAM_##program)
bool import_has(const struct import_work *w, unsigned programs);
/* Returns our word for theirs, by "theirs=ours theirs=ours"; NULL: it is none of them. */
const char *import_pair(struct import_work *w, const char *pairs, const char *word);

/* The facts: the batch and the run (run_facts.c), the schedule and the optimizer
 * (schedule_facts.c), memory (memory_facts.c), adapters and frozen parts (trained_parts.c), and
 * data (data_facts.c). */
void import_run(struct import_work *w);
void import_schedule(struct import_work *w);
void import_memory(struct import_work *w);
void import_adapter(struct import_work *w);
void import_data(struct import_work *w);
/* Returns the entry that asks for a LoRA adapter; NULL: all weights are trained
 * (trained_parts.c). */
const struct import_entry *import_asks_for_lora(struct import_work *w);
/* Returns a word as a value. */
struct value *import_word(struct import_work *w, const char *text);

/* Reports whether a value says no: null, false, 0, "", none, no, off, an empty list or map, a map
 * with enabled: false. */
bool import_off(const struct value *v);

/*
 * foreign_rows.h: the rows of foreign.def as data, only for the foreign*.c files.
 */
#ifndef CONFIG_FOREIGN_ROWS_H
#define CONFIG_FOREIGN_ROWS_H

#include "config/foreign.h"
#include "io/value.h"

enum foreign_program {
#define PROGRAM(id, ...) PROGRAM_##id,
#define FOREIGN(...)
#include "config/foreign.def"
#undef PROGRAM
#undef FOREIGN
    FOREIGN_PROGRAMS
};

/* How a value becomes ours; from HOW_MICRO on they are facts, which foreign.c combines. */
enum foreign_how {
    HOW_VALUE,
    HOW_POSITIVE,
    HOW_WORD,
    HOW_IF_TRUE,
    HOW_NONE,
    HOW_ONLY,
    HOW_ONLY_TRUE,
    HOW_ASK,
    HOW_MICRO,
    HOW_ACCUMULATION,
    HOW_BATCH,
    HOW_RANKS,
    HOW_NODES,
    HOW_FIND_BATCH,
    HOW_EPOCHS,
    HOW_STEPS,
    HOW_SCHEDULE,
    HOW_SCHEDULE_OPTIONS,
    HOW_WARMUP,
    HOW_WARMUP_RATIO,
    HOW_SWIFT_RATE,
    HOW_DS_SCHEDULE,
    HOW_DS_WARMUP,
    HOW_DS_WARMUP_TYPE,
    HOW_DS_MAX_RATE,
    HOW_DS_MIN_RATE,
    HOW_DS_MIN_RATIO,
    HOW_DS_COSINE_FLOOR,
    HOW_DECAY,
    HOW_BETAS,
    HOW_OPTIMIZER,
    HOW_DS_OPTIMIZER,
    HOW_TORCH_ADAM,
    HOW_ADAM_W_MODE,
    HOW_BF16,
    HOW_FP16,
    HOW_PURE_BF16,
    HOW_AMP,
    HOW_MIXED,
    HOW_DTYPE,
    HOW_AUTOCAST_DTYPE,
    HOW_SWIFT_DTYPE,
    HOW_AXOLOTL_BF16,
    HOW_TF32,
    HOW_SCALE_POWER,
    HOW_SCALE_WINDOW,
    HOW_RECOMPUTE,
    HOW_NO_RECOMPUTE,
    HOW_RECOMPUTE_EVERY,
    HOW_RECOMPUTE_RATIO,
    HOW_RECOMPUTE_SEGMENTS,
    HOW_RECOMPUTE_LANGUAGE,
    HOW_RECOMPUTE_TOWER,
    HOW_TOWER_EVERY,
    HOW_STAGE,
    HOW_FSDP,
    HOW_DISTRIBUTED,
    HOW_SWIFT_DEEPSPEED,
    HOW_COMMUNICATION,
    HOW_TOKENS_ACROSS,
    HOW_OFFLOAD_OPTIMIZER,
    HOW_OFFLOAD_PARAM,
    HOW_OFFLOAD_ACTIVATIONS,
    HOW_FSDP_OFFLOAD,
    HOW_CPU_CHECKPOINTING,
    HOW_EVAL_STRATEGY,
    HOW_EVAL_STEPS,
    HOW_SAVE_STRATEGY,
    HOW_SAVE_STEPS,
    HOW_LOGGING_STEPS,
    HOW_KEEP,
    HOW_BEST,
    HOW_FINETUNING,
    HOW_ADAPTER,
    HOW_USE_LORA,
    HOW_LORA_RANK,
    HOW_LORA_ALPHA,
    HOW_LORA_DROPOUT,
    HOW_LORA_BIAS,
    HOW_LORA_TARGET,
    HOW_LORA_LINEAR,
    HOW_LORA_SAVE,
    HOW_LORA_RSLORA,
    HOW_LORA_DORA,
    HOW_LORA_PATH,
    HOW_BITS,
    HOW_BITS4,
    HOW_DOUBLE_QUANT,
    HOW_FREEZE_TOWER,
    HOW_FREEZE_PROJECTOR,
    HOW_FREEZE_LANGUAGE,
    HOW_FREEZE_IMAGES,
    HOW_TUNE_PROJECTOR,
    HOW_PROJECTOR_RATE,
    HOW_TOWER_RATE,
    HOW_TRAIN_FILE,
    HOW_VALIDATION_FILE,
    HOW_DATASET,
    HOW_EVAL_DATASET,
    HOW_DATASET_DIR,
    HOW_DATASET_NAME,
    HOW_SWIFT_DATASET,
    HOW_SWIFT_VALIDATION,
    HOW_AXOLOTL_DATASETS,
    HOW_AXOLOTL_TESTS,
    HOW_MAX_SAMPLES,
    HOW_VAL_SIZE,
    HOW_VAL_PERCENT,
    HOW_PACKING,
    HOW_NO_SHUFFLE,
    HOW_SAMPLING,
    HOW_SWIFT_LENGTH,
    HOW_TRAIN_ON_ASSISTANT,
    HOW_TRAIN_ON_PROMPT,
    HOW_TRAIN_ON_LAST,
    HOW_TEMPLATE,
    HOW_AXOLOTL_TEMPLATE,
    HOW_AXOLOTL_TOKENS,
    HOW_AXOLOTL_PLUGINS,
    HOW_DATA_ROOT,
    HOW_ANNOTATIONS,
    HOW_MAX_FRAMES,
    HOW_DO_TRAIN,
    HOW_DO_OTHER,
    HOW_DEEPSPEED,
    HOW_CONFIG_FILE
};

struct foreign_row {
    enum foreign_program program;
    const char *key, *standard;
    enum foreign_how how;
    const char *ours, *detail;
};

/* A value of a file, or the program's default. */
struct foreign_entry {
    const struct foreign_row *row;
    enum foreign_program program; /* that was read; the row may be of its parent */
    const char *key;              /* as in the file */
    const struct value *value;
    const char *file;
    uint32_t line;
    bool given;                   /* not a default */
    bool automatic;               /* "auto" of a DeepSpeed file: neither a value nor a default */
};

/* The table (foreign_table.c). */
const char *foreign_name(enum foreign_program p);
/* Returns why files of the program are not read, and what to do; "": they are read. */
const char *foreign_refused(enum foreign_program p);
/* Returns the row of a key of the program or its parent; NULL: none. A key without effect has HOW_NONE, and foreign_why
 * says why. */
const struct foreign_row *foreign_find(enum foreign_program p, const char *key);
const char *foreign_why(const struct foreign_row *r);
/* Returns the most similar key of the program, in `b`; NULL: none is near. */
const char *foreign_nearest(enum foreign_program p, const char *key, struct bump *b);
/* Whether the key is in a section of which the program knows keys. */
bool foreign_in_section(enum foreign_program p, const char *key);
/* Calls `visit` for each key of a document: a map without a row of its own is walked. Stops at a nonzero result. */
typedef int foreign_visit(void *to, const struct foreign_row *row, const char *key, const struct value *v);
int foreign_walk(enum foreign_program p, const struct value *map, struct bump *b, foreign_visit *visit, void *to);
/* The program that knows most keys of a document, of several one with its bit in `read`, or else the first; FOREIGN_PROGRAMS: none
 * knows one. */
enum foreign_program foreign_guess(const struct value *map, unsigned read);
/* Appends the defaults of the programs that were read. */
void foreign_add_defaults(struct foreign *f);

/* Adds the keys of a map (foreign_read.c). `p` is FOREIGN_PROGRAMS where the keys decide. */
int foreign_add(struct foreign *f, enum foreign_program p, const struct value *map, const char *file, struct error *e);
/* Reads a file that another one names: as it is, or from that file's folder or one above it. */
int foreign_follow(struct foreign *f, enum foreign_program p, const char *path, const char *from, struct error *e);
/* The path of a file that another file names, in f->memory; NULL: it does not exist. */
const char *foreign_locate(struct foreign *f, const char *path, const char *from);

/* Whether the text is a shell script rather than YAML; adds the arguments of its training command (foreign_command.c). */
bool foreign_is_command(const char *text, const char *name);
int foreign_add_command(struct foreign *f, const char *text, const char *name, struct error *e);

/* A document of its own: a dictionary, or the keyword arguments of a call. */
struct foreign_document {
    enum foreign_program program; /* FOREIGN_PROGRAMS: its keys tell */
    struct value *map;
};
typedef VEC(struct foreign_document) foreign_documents;
/* Whether the text is made of Python's assignments and calls; appends what they say, in f->memory (foreign_python.c).
 */
bool foreign_is_python(const char *text);
int foreign_read_python(struct foreign *f, const char *text, const char *name, foreign_documents *out, struct error *e);

/* The files of a dataset list of LLaMA-Factory, as a list (foreign_dataset.c). */
int foreign_datasets(struct foreign *f, const struct foreign_entry *names, const char *folder, struct value **paths, struct error *e);

/* What foreign_apply works with (foreign_entries.c). The first error stays in f->error, and nothing is set after it. */
struct foreign_work {
    struct foreign *f;
    struct config *c;
};
/* The value of a fact, of which a given one comes before a default and the arguments of a script before those of its launcher;
 * NULL: none. A DeepSpeed file that says another value than the program that uses it is an error. */
const struct foreign_entry *foreign_pick(struct foreign_work *w, enum foreign_how how);
/* The same for the keys that become the key `ours`, one for one. */
const struct foreign_entry *foreign_pick_for(struct foreign_work *w, const char *ours);
/* As foreign_pick, but NULL for a default. */
const struct foreign_entry *foreign_given(struct foreign_work *w, enum foreign_how how);
/* The first given entry of the fact that is true; NULL: none. */
const struct foreign_entry *foreign_any(struct foreign_work *w, enum foreign_how how);
/* Whether a DeepSpeed file says "auto" for a key. */
bool foreign_automatic(const struct foreign_work *w, const char *key);
/* The ranks that a file says it is for, else those of this run. */
int64_t foreign_ranks(struct foreign_work *w);
bool foreign_failed(const struct foreign_work *w);
/* Sets a key of ours; `from` is printed behind it. NULL: the entry's key and where it is. */
void foreign_put(struct foreign_work *w, const char *ours, struct value *v, const struct foreign_entry *entry, const char *from);
/* Lists a key of theirs as without effect, if it was given. */
void foreign_leave(struct foreign_work *w, const struct foreign_entry *entry, const char *why);
/* Asks what a given key of theirs becomes; a value of the key `ours` is the answer. */
void foreign_ask(struct foreign_work *w, const struct foreign_entry *entry, const char *ours, const char *question);
/* Reports an error at an entry. */
void foreign_refuse(struct foreign_work *w, const struct foreign_entry *entry, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* The value as true or false, as a number, or as a whole number within bounds; false, 0 and `low` with an error for others and
 * without one for NULL. */
bool foreign_true(struct foreign_work *w, const struct foreign_entry *entry);
double foreign_number(struct foreign_work *w, const struct foreign_entry *entry);
int64_t foreign_whole(struct foreign_work *w, const struct foreign_entry *entry, int64_t low, int64_t high);
const char *foreign_text(const struct foreign_entry *entry); /* "" for NULL, lists and maps */
bool foreign_has(const struct foreign_work *w, enum foreign_program p);
bool foreign_is_hf(const struct foreign_work *w); /* TrainingArguments, or a program that has them */

/* The facts: the batch and the run (foreign_run.c), the schedule and the optimizer (foreign_schedule.c), memory
 * (foreign_memory.c), adapters and frozen parts (foreign_adapter.c), and data (foreign_data.c). */
void foreign_run(struct foreign_work *w);
void foreign_schedule(struct foreign_work *w);
void foreign_memory(struct foreign_work *w);
void foreign_adapter(struct foreign_work *w);
void foreign_data(struct foreign_work *w);
/* The entry that asks for a LoRA adapter; NULL: all weights are trained (foreign_adapter.c). */
const struct foreign_entry *foreign_asks_for_lora(struct foreign_work *w);
/* A word as a value. */
struct value *foreign_word(struct foreign_work *w, const char *text);

/* Whether a value says no: null, false, 0, "", none, no, off, an empty list or map, a map with enabled: false. */
bool foreign_off(const struct value *v);

#endif

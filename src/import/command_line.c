/*
 * command_line.c: the command line of a training script, in a file.
 *
 *     torchrun --nproc_per_node=4 train.py --batch_size 2 --use_amp
 *     deepspeed --num_gpus 8 train.py --deepspeed zero3.json --bf16 True
 *     accelerate launch --config_file zero2.yaml sft.py --config recipe.yaml
 *     llamafactory-cli train sft.yaml learning_rate=1e-5
 *     swift sft --model Qwen2.5-7B --dataset chats.jsonl
 *     --batch_size 1 --gradient_accumulation_steps 8
 *
 * It has one command that trains; others, such as cd, export, pip, and scripts that evaluate or
 * convert, are skipped. Options before the script are those of the launcher, options behind it
 * those of the script.
 *
 * The file is read as words of a shell, with its quotes, escapes, comments and ~/. $NAME and
 * ${NAME} have the value that a line NAME=value of the file gives them. Everything else that a
 * shell would compute, ${NAME:-default}, $(...), $1, a list, a variable of the environment, stays
 * as it is written: the word says what it lacks, and this is asked for, with the key whose value
 * it would be.
 */
#include <ctype.h>

#include "config/config_rows.h"
#include "import/import_rows.h"
#include "io/yaml.h"

/* --- words ----------------------------------------------------------------------------------- */

struct word {
    const char *text;
    uint32_t line;
    const char *unknown; /* the variable or expression in it without a value; NULL: none */
};
typedef VEC(struct word) words;

struct shell {
    struct import *f;
    const char *name, *at;
    uint32_t line;
    struct value *variables; /* of the file: texts, in which names without a value are left */
    size_t expanded;         /* bytes that variables gave; bounded, because A=$A$A doubles on each line */
    import_documents *documents;
    struct error *e;
};

enum { MAX_EXPANDED = 1 << 18 };

static size_t name_length(const char *s)
{
    size_t n = 0;
    while (isalnum((unsigned char)s[n]) || s[n] == '_') n++;
    return n;
}

/* Returns the end of the brackets that open at s. */
static const char *closing(const char *s)
{
    const char open = *s, close = open == '{' ? '}' : ')';
    for (int depth = 0; *s; s++) {
        depth += (*s == open) - (*s == close);
        if (!depth) return s + 1;
    }
    return s;
}

/* Returns the end of the $NAME, ${...}, $(...), $1 or `...` at s; s: there is none. */
static const char *variable_end(const char *s)
{
    if (*s == '`') return strchr(s + 1, '`') ? strchr(s + 1, '`') + 1 : s + strlen(s);
    if (*s != '$') return s;
    if (s[1] == '(' || s[1] == '{') return closing(s + 1);
    if (s[1] && strchr("@*#?$!-", s[1])) return s + 2;
    return name_length(s + 1) ? s + 1 + name_length(s + 1) : s;
}

static bool ends_command(char c) { return !c || strchr("\n;|&()<>", c); }

/* Tells whether a word is NAME=... or NAME+=... */
static bool is_assignment(const char *word)
{
    const size_t n = name_length(word);
    return n && !isdigit((unsigned char)*word) && (word[n] == '=' || (word[n] == '+' && word[n + 1] == '='));
}

/* The word that is being read. */
struct reading {
    struct text text;
    struct word word;
    bool some; /* it is a word even if it has no characters: '' */
};

static void end_word(struct shell *s, struct reading *r, words *out)
{
    if (!r->text.n && !r->some) return;
    r->word.text = bump_string(&s->f->memory, r->text.n ? r->text.at : "");
    vec_push(out, r->word);
    r->text.n = 0;
    r->some = false;
    r->word.unknown = NULL;
}

/* Returns the first variable in a text, whose value is not known; NULL: there is none. */
static const char *lacking(struct shell *s, const char *text)
{
    const char *from = strchr(text, '$'), *end = from ? variable_end(from) : NULL;
    return from == end ? NULL : bump_format(&s->f->memory, "%.*s", (int)(end - from), from);
}

/* Appends the value of the variable that ends at `end`, or its name. Outside of quotes a value may
 * be several words: ARGS="--batch_size 2". */
static void append_variable(struct shell *s, struct reading *r, const char *end, char quote, words *out)
{
    const char *from = s->at, *name = from + 1 + (from[1] == '{');
    const size_t n = name_length(name);
    const bool plain = *from == '$' && n && name + n + (from[1] == '{') == end;
    const struct value *v = plain ? value_get(s->variables, bump_format(&s->f->memory, "%.*s", (int)n, name)) : NULL;
    const bool whole = quote || (r->text.n && is_assignment(r->text.at));
    for (; s->at < end; s->at++) s->line += *s->at == '\n';
    if (v) s->expanded += strlen(v->text);
    if (!v || s->expanded > MAX_EXPANDED) {
        text_append(&r->text, from, (size_t)(end - from));
        r->word.unknown = bump_format(&s->f->memory, "%.*s", (int)(end - from), from);
        return;
    }
    for (const char *value = v->text; *value;) {
        const size_t length = whole ? strlen(value) : strcspn(value, " \t\r\n\v\f");
        const char *lacks = lacking(s, bump_format(&s->f->memory, "%.*s", (int)length, value));
        text_append(&r->text, value, length);
        if (lacks) r->word.unknown = lacks;
        value += length;
        if (*value) end_word(s, r, out), value++;
    }
}

/* Reads one word, or several from variables; s->at is at its first character. */
static int read_word(struct shell *s, words *out)
{
    struct reading r = {.word = {.line = s->line}};
    const uint32_t line = s->line;
    char quote = 0;
    while (*s->at && (quote || !(isspace((unsigned char)*s->at) || ends_command(*s->at)))) {
        const char *variable = quote == '\'' ? s->at : variable_end(s->at);
        if (variable > s->at) {
            append_variable(s, &r, variable, quote, out);
            continue;
        }
        const char c = *s->at++;
        s->line += c == '\n';
        if (c == '\\' && quote != '\'' && *s->at) {
            if (*s->at == '\n') s->line++;
            else text_append(&r.text, s->at, 1);
            s->at++;
        } else if (c == quote) quote = 0;
        else if (!quote && (c == '"' || c == '\'')) quote = c, r.some = true;
        else if (c == '~' && !r.text.n && !r.some && *s->at == '/' && getenv("HOME"))
            text_printf(&r.text, "%s", getenv("HOME"));
        else text_append(&r.text, &c, 1);
    }
    const bool redirect = *s->at == '>' && r.text.n && strspn(r.text.at, "0123456789") == r.text.n; /* 2>file */
    if (!redirect) end_word(s, &r, out);
    text_free(&r.text);
    return quote ? error_set(s->e, PL_USAGE, "%s:%u: a quote %c is not closed", s->name, line, quote) : PL_OK;
}

/* Skips blanks, escaped ends of lines and a comment. */
static void skip_blanks(struct shell *s)
{
    for (;; s->at++) {
        const char *next = s->at + 1 + (s->at[0] == '\\' && s->at[1] == '\r');
        if (*s->at == '\\' && *next == '\n') s->at = next, s->line++;
        else if (*s->at == '\n' || !isspace((unsigned char)*s->at)) break;
    }
    if (*s->at == '#') s->at += strcspn(s->at, "\n");
}

/* Reads the words of the next command, in place of those in `out`; none at the end of the file. */
static int read_words(struct shell *s, words *out)
{
    out->n = 0;
    while (*s->at) {
        skip_blanks(s);
        if (!*s->at) break;
        if (ends_command(*s->at)) {
            s->line += *s->at++ == '\n';
            if (out->n) break;
            continue;
        }
        if (read_word(s, out)) return s->e->code;
        struct word *last = out->n ? &out->at[out->n - 1] : NULL;
        if (*s->at != '(' || !last || !is_assignment(last->text) || !text_ends_with(last->text, "=")) continue;
        last->unknown = "a list"; /* NAME=(...) */
        for (const char *end = closing(s->at); s->at < end; s->at++) s->line += *s->at == '\n';
    }
    return PL_OK;
}

/* Sets a variable. NAME=$1 leaves a value that NAME has. */
static void assign(struct shell *s, const struct word *w)
{
    const size_t n = strcspn(w->text, "+="), lacks = w->unknown ? strlen(w->unknown) : 0;
    const char *name = bump_format(&s->f->memory, "%.*s", (int)n, w->text), *value = w->text + n + 1;
    if (lacks && isdigit((unsigned char)w->unknown[strspn(w->unknown, "${")]) && value_get(s->variables, name)) return;
    if (w->text[n] == '+' || (lacks && 1 + name_length(w->unknown + 1) != lacks))
        value = bump_format(&s->f->memory, "$%s", name); /* it is computed */
    value_put(&s->f->memory, s->variables, name, value_string(&s->f->memory, value));
}

/* --- commands -------------------------------------------------------------------------------- */

static const char *base_name(const char *path) { return strrchr(path, '/') ? strrchr(path, '/') + 1 : path; }
static bool is_one_of(const char *words, const char *word) { return config_word_index(words, word) >= 0; }
static bool is_script(const char *word) { return text_ends_with(word, ".py"); }
static bool is_python(const char *word) { return !strncmp(base_name(word), "python", 6); }
static bool is_module_flag(const char *word) { return is_one_of("-m|--module", word); }

static bool is_launcher(const char *word)
{
    return is_one_of(
        "torchrun|deepspeed|accelerate|torch.distributed.run|torch.distributed.launch|accelerate.commands.launch",
        base_name(word));
}

/* Programs with commands of their own, and those commands that train. */
static const struct tool {
    const char *name, *trains;
    enum import_program program;
} tools[] = {
    {"llamafactory-cli", "train", PROGRAM_lf}, {"lmf", "train", PROGRAM_lf},       {"trl", "sft", PROGRAM_trl},
    {"axolotl", "train", PROGRAM_axolotl},     {"swift", "sft|pt", PROGRAM_swift}, {"megatron", "", IMPORT_PROGRAMS}};

static const struct tool *find_tool(const char *word)
{
    for (size_t i = 0; i < COUNT(tools); i++)
        if (!strcmp(base_name(word), tools[i].name)) return &tools[i];
    return NULL;
}

/* Tells whether a word before a command says how the shell runs it. */
static bool is_prefix(const char *word)
{
    return is_one_of("export|env|exec|time|nohup|then|else|do|{", word) || is_assignment(word);
}

/* Returns the word at which a command of a training program begins, behind variables; words->n: it
 * is another command. Options without a command are one at the beginning of a file: elsewhere they
 * are cases of a script that reads its arguments. */
static uint32_t command_begin(const words *w, bool first)
{
    uint32_t i = 0;
    while (i < w->n && is_prefix(w->at[i].text)) i++;
    if (first && i < w->n && !strncmp(w->at[i].text, "--", 2)) return i;
    if (i + 1 < w->n && find_tool(w->at[i].text)) return i;
    if (i < w->n && is_launcher(w->at[i].text)) return i;
    for (uint32_t k = i + 1; i < w->n && is_python(w->at[i].text) && k < w->n; k++)
        if (is_script(w->at[k].text) ||
            (!strcmp(w->at[k].text, "-m") && k + 1 < w->n && strcmp(w->at[k + 1].text, "pip")))
            return i;
    return w->n;
}

enum purpose { TRAINS, MAY_TRAIN, DOES_NOT };

static bool contains_one(const char *name, const char *const *parts)
{
    while (*parts && !strstr(name, *parts)) parts++;
    return *parts;
}

/* Tells it from the name of a script or module: "finetune.py", "llava.eval.model_vqa". */
static enum purpose purpose_of(const char *name)
{
    static const char *const training[] = {"train", "tune", "sft", NULL};
    static const char *const others[] = {"eval",    "infer",      "predict",    "convert",  "merge", "export",
                                         "extract", "serve",      "demo",       "generate", "build", "twine",
                                         "upload",  "download",   "preprocess", "prepare",  "test",  "score",
                                         "calcul",  "submission", "pip",        NULL};
    return contains_one(name, training) ? TRAINS : contains_one(name, others) ? DOES_NOT : MAY_TRAIN;
}

/* Returns what a command does that begins at word i; *name: its script, module or command. */
static enum purpose command_purpose(const words *w, uint32_t i, const char **name)
{
    const struct tool *tool = find_tool(*name = w->at[i].text);
    if (!strncmp(*name, "--", 2)) return TRAINS;
    if (tool) return is_one_of(tool->trains, w->at[i + 1].text) ? TRAINS : DOES_NOT;
    for (; i < w->n; i++) {
        const bool module = i && is_module_flag(w->at[i - 1].text);
        if (!is_script(w->at[i].text) && (!module || is_launcher(w->at[i].text))) continue;
        *name = w->at[i].text;
        return purpose_of(module ? *name : base_name(*name));
    }
    return MAY_TRAIN;
}

/* Tells whether a word begins an option: not a negative number. */
static bool is_option(const char *word)
{
    return word[0] == '-' && word[1] && !isdigit((unsigned char)word[1]) && word[1] != '.';
}

/* Returns the part of a word from `text` on as a value: a null with a text is a variable without a
 * value. */
static struct value *word_value(struct shell *s, const struct word *w, const char *text)
{
    struct value *v = w->unknown ? value_new(&s->f->memory, VALUE_NULL) : yaml_scalar(&s->f->memory, text);
    if (w->unknown) v->text = w->unknown;
    v->line = w->line;
    return v;
}

/* Returns the option's name as a key: --learning-rate is learning_rate. */
static char *option_key(struct shell *s, const char *option)
{
    option += strspn(option, "-");
    char *key = bump_format(&s->f->memory, "%.*s", (int)strcspn(option, "="), option);
    for (char *c = key; *c; c++)
        if (*c == '-') *c = '_';
    return key;
}

/* Reads the option at words[*i] and its values: none is true; several are a list. --no-x is x:
 * false. */
static void put_option(struct shell *s, const words *w, uint32_t *i, uint32_t end, uint32_t most, struct value *map)
{
    const struct word *option = &w->at[(*i)++], *first = &w->at[*i];
    const uint32_t from = *i;
    const char *equals = strchr(option->text, '=');
    char *key = option_key(s, option->text);
    struct value *v;
    while (!equals && *i < end && *i - from < most && !is_option(w->at[*i].text)) ++*i;
    if (equals) v = word_value(s, option, equals + 1);
    else if (*i == from) {
        const bool no = !strncmp(key, "no_", 3) && strcmp(key, "no_cuda");
        v = value_bool(&s->f->memory, !no);
        if (no) key += 3;
    } else if (*i == from + 1 || first->unknown) v = word_value(s, first, first->text);
    else {
        v = value_new(&s->f->memory, VALUE_LIST);
        for (; first < &w->at[*i]; first++) value_append(&s->f->memory, v, word_value(s, first, first->text));
    }
    v->line = option->line;
    if (*key) value_put(&s->f->memory, map, key, v);
}

/* Reads the options of the launcher up to the script; *i is then behind the script. */
static struct value *launch_options(struct shell *s, const words *w, uint32_t *i)
{
    struct value *map = value_new(&s->f->memory, VALUE_MAP);
    while (*i < w->n && !is_script(w->at[*i].text)) {
        const char *word = w->at[*i].text;
        if (is_module_flag(word)) {
            ++*i; /* the module is the script, or a launcher */
            if (*i < w->n && !is_launcher(w->at[*i].text)) break;
            ++*i;
        } else if (strncmp(word, "--", 2)) ++*i; /* launch, -u */
        else {
            const uint32_t value = *i + 1;
            put_option(s, w, i, value < w->n && is_script(w->at[value].text) ? value : w->n, 1, map);
        }
    }
    if (*i < w->n) ++*i;
    return map;
}

static void put_document(struct shell *s, enum import_program p, const struct value *map)
{
    if (map->count) vec_push(s->documents, ((struct import_document){.program = p, .map = map}));
}

/* Adds NPROC_PER_NODE and NNODES before a command of ms-swift or LLaMA-Factory, which start its
 * processes. */
static void add_processes(struct shell *s)
{
    static const char *const names[][2] = {{"NPROC_PER_NODE", "nproc_per_node"}, {"NNODES", "nnodes"}};
    struct value *map = value_new(&s->f->memory, VALUE_MAP);
    for (size_t i = 0; i < COUNT(names); i++) {
        const struct value *v = value_get(s->variables, names[i][0]);
        const struct word w = {.line = s->line, .unknown = v ? lacking(s, v->text) : NULL};
        if (v && *v->text) value_put(&s->f->memory, map, names[i][1], word_value(s, &w, v->text));
    }
    put_document(s, PROGRAM_launch, map);
}

/* Adds the arguments of the script: options, key=value, and files of settings, which are read
 * first: options come later. `p`: the program that it is; IMPORT_PROGRAMS: its keys tell. */
static int add_arguments(struct shell *s, const words *w, uint32_t i, enum import_program p)
{
    struct value *map = value_new(&s->f->memory, VALUE_MAP);
    if (p == PROGRAM_swift && !strcmp(w->at[i - 1].text, "pt"))
        value_put(&s->f->memory, map, "loss_scale", word_value(s, &w->at[i - 1], "all"));
    while (i < w->n) {
        const struct word *word = &w->at[i];
        if (is_option(word->text)) put_option(s, w, &i, w->n, UINT32_MAX, map);
        else if (is_assignment(word->text)) put_option(s, w, &i, i, 0, map);
        else {
            if (!path_has_ending(word->text, ".yaml") && !path_has_ending(word->text, ".yml") &&
                !path_has_ending(word->text, ".json"))
                return error_set(s->e, PL_USAGE, "%s:%u: the argument %.200s is neither an option nor a file of "
                                 "settings", s->name, word->line, word->text);
            vec_push(s->documents, ((struct import_document){.file = word->text, .line = word->line}));
            i++;
        }
    }
    put_document(s, p, map);
    return PL_OK;
}

/* Returns the program of a script that is known by its name; IMPORT_PROGRAMS: its keys tell. */
static enum import_program program_of(const char *script, const words *w)
{
    if (!strcmp(base_name(script), "train_prs_med.py")) return PROGRAM_prs;
    if (strstr(script, "llava/train/") || strstr(script, "llava.train.")) return PROGRAM_llava;
    for (uint32_t i = 0; i < w->n && !strcmp(base_name(script), "train_ddp.py"); i++) /* a common name */
        if (!strncmp(w->at[i].text, "--annotation_path", 17)) return PROGRAM_ddp;
    return IMPORT_PROGRAMS;
}

/* Refuses a variable without a value in the place of words of the command rather than of the value
 * of an option. */
static int check_words(struct shell *s, const words *w, uint32_t i)
{
    while (++i < w->n) {
        const struct word *x = &w->at[i];
        const char *before = w->at[i - 1].text;
        const bool value = is_option(before) && !strchr(before, '=') && !strpbrk(x->unknown ? x->unknown : "", "@*");
        if (x->unknown && !value && !is_option(x->text) && !is_assignment(x->text) && !is_script(x->text))
            return error_set(s->e, PL_USAGE, "%s:%u: %.200s has no value in this file; write its value in its place",
                             s->name, x->line, x->unknown);
    }
    return PL_OK;
}

static int add_command(struct shell *s, const words *w, uint32_t i)
{
    const struct tool *tool = find_tool(w->at[i].text);
    TRY(check_words(s, w, i));
    if (tool) {
        add_processes(s);
        return add_arguments(s, w, i + 2, tool->program); /* llamafactory-cli train ... */
    }
    if (!strncmp(w->at[i].text, "--", 2))
        return add_arguments(s, w, i, program_of(s->f->script ? s->f->script : "", w));
    put_document(s, PROGRAM_launch, launch_options(s, w, &i));
    return add_arguments(s, w, i, program_of(i ? w->at[i - 1].text : "", w));
}

bool import_is_command(const char *text, const char *name)
{
    char word[32];
    if (!strncmp(text, "#!", 2) || path_has_ending(name, ".sh") || path_has_ending(name, ".bash")) return true;
    for (; isspace((unsigned char)*text) || *text == '#'; text++)
        if (*text == '#' && !*(text += strcspn(text, "\n"))) return false;
    if (!strncmp(text, "--", 2) && isalpha((unsigned char)text[2])) return true;
    if (isupper((unsigned char)*text) && is_assignment(text)) return true; /* OMP_NUM_THREADS=4 torchrun ... */
    snprintf(word, sizeof word, "%.*s", (int)strcspn(text, " "), text);
    return is_one_of("python|python3|torchrun|deepspeed|accelerate|llamafactory-cli|trl|axolotl|swift|export", word);
}

/* The commands of a file that may train. */
struct commands {
    words chosen;
    uint32_t begin;
    enum purpose purpose;        /* of the chosen one; DOES_NOT: there is none */
    const char *other;           /* the first that does something else, and its line */
    uint32_t other_line, second; /* the line of a second one that may train; 0: none */
};

static int choose(struct commands *c, const words *w, uint32_t i, const struct shell *s, struct error *e)
{
    const char *name;
    const enum purpose purpose = command_purpose(w, i, &name);
    if (purpose == DOES_NOT && !c->other)
        c->other = find_tool(name) ? bump_format(&s->f->memory, "%s %s", name, w->at[i + 1].text) : name,
        c->other_line = w->at[i].line;
    if (purpose == DOES_NOT || purpose > c->purpose) return PL_OK;
    if (purpose == c->purpose && purpose == TRAINS)
        return error_set(e, PL_USAGE, "%s:%u: a second command that trains (the first is on line %u); expected one",
                         s->name, w->at[i].line, c->chosen.at[c->begin].line);
    c->second = purpose == c->purpose && !c->second ? w->at[i].line : 0;
    if (purpose == c->purpose) return PL_OK;
    c->purpose = purpose;
    c->begin = i;
    c->chosen.n = 0;
    for (uint32_t k = 0; k < w->n; k++) vec_push(&c->chosen, w->at[k]);
    return PL_OK;
}

static int check_chosen(const struct commands *c, const struct shell *s, struct error *e)
{
    if (c->purpose == TRAINS) return PL_OK;
    if (c->other)
        return error_set(e, PL_USAGE, "%s: it has no command that trains: %s, line %u, evaluates, converts or prepares",
                         s->name, c->other, c->other_line);
    if (c->purpose == DOES_NOT)
        return error_set(e, PL_USAGE, "%s: it has no command that trains, such as python train.py, torchrun, "
                         "deepspeed, accelerate launch, llamafactory-cli train, swift sft or axolotl train", s->name);
    if (c->second)
        return error_set(e, PL_USAGE, "%s:%u: a second command that may train (the first is on line %u); expected one",
                         s->name, c->second, c->chosen.at[c->begin].line);
    return PL_OK;
}

int import_read_command(struct import *f, const char *text, const char *name, import_documents *out, struct error *e)
{
    struct shell s = {.f = f, .name = name, .at = text, .line = 1, .documents = out, .e = e};
    struct commands c = {.purpose = DOES_NOT};
    words w = {0};
    int rc = PL_OK;
    bool first = true;
    s.variables = value_new(&f->memory, VALUE_MAP);
    while (*s.at && !rc && !(rc = read_words(&s, &w))) {
        const uint32_t i = command_begin(&w, first);
        uint32_t k = 0;
        for (; k < w.n && is_prefix(w.at[k].text); k++)
            if (is_assignment(w.at[k].text)) assign(&s, &w.at[k]);
        first = first && k == w.n;
        if (i < w.n) rc = choose(&c, &w, i, &s, e);
    }
    if (!rc) rc = check_chosen(&c, &s, e);
    if (!rc) rc = add_command(&s, &c.chosen, c.begin);
    vec_free(&w);
    vec_free(&c.chosen);
    return rc;
}

/*
 * foreign_command.c: the command line of a training script, in a file.
 *
 *     torchrun --nproc_per_node=4 train.py --batch_size 2 --use_amp
 *     deepspeed --num_gpus 8 train.py --deepspeed zero3.json --bf16 True
 *     accelerate launch --config_file zero2.yaml sft.py --config recipe.yaml
 *     llamafactory-cli train sft.yaml learning_rate=1e-5
 *     --batch_size 1 --gradient_accumulation_steps 8
 *
 * The file is read as a shell would read simple commands: quotes, \ at the end of a line, comments, NAME=value and
 * $NAME of the same file. It has one command that trains; others, such as cd, export and pip, are skipped. What
 * stands before the script are options of the launcher, and what stands after it are those of the script.
 */
#include <ctype.h>
#include <string.h>

#include "config/foreign_rows.h"
#include "io/yaml.h"

enum { MAX_EXPANDED = 4 << 20 };

struct word {
    const char *text;
    uint32_t line;
    const char *unknown; /* an expression of the shell in it that has no value here; NULL: none */
};
typedef VEC(struct word) words;

struct shell {
    struct foreign *f;
    const char *name, *at;
    uint32_t line;
    struct value *variables; /* of the file; null: unknown */
    struct error *e;
    size_t expanded;         /* bytes that variables gave, of MAX_EXPANDED: A=$A$A doubles on each line */
};

/* --- words ----------------------------------------------------------------------------------------- */

/* The end of $(...) or `...`, at its first bracket or quote. */
static const char *expression_end(const char *s)
{
    int depth = 0;
    if (*s == '`') return strchr(s + 1, '`') ? strchr(s + 1, '`') + 1 : s + strlen(s);
    for (; *s; s++) {
        depth += (*s == '(') - (*s == ')');
        if (!depth) return s + 1;
    }
    return s;
}

/* Appends the value of the variable or expression at s->at, which is behind its $. Returns what has no value; NULL: nothing. */
static const char *expand(struct shell *s, struct text *out)
{
    const char *from = s->at;
    if (*from == '(' || *from == '`') s->at = expression_end(from);
    else if (*from == '{') s->at += strcspn(from, "}") + (strchr(from, '}') != NULL);
    else {
        while (isalnum((unsigned char)*s->at) || *s->at == '_') s->at++;
        if (s->at == from && *from && strchr("@*#?$!-", *from)) s->at++;
    }
    const int n = (int)(s->at - from), brace = *from == '{' && n > 1;
    const struct value *v = value_get(s->variables, bump_format(&s->f->memory, "%.*s", n - 2 * brace, from + brace));
    for (const char *c = from; c < s->at; c++) s->line += *c == '\n';
    if (v && v->text && s->expanded <= MAX_EXPANDED) text_printf(out, "%s", v->text), s->expanded += strlen(v->text);
    return v && v->text ? NULL : bump_format(&s->f->memory, "$%.*s", n, from);
}

static bool ends_command(char c) { return !c || c == '\n' || c == ';' || c == '|' || c == '&' || c == '(' || c == ')' || c == '<' || c == '>'; }

/* One word; s->at is at its first character. */
static int read_word(struct shell *s, struct text *out, struct word *w)
{
    char quote = 0;
    while (*s->at && (quote || !(isspace((unsigned char)*s->at) || ends_command(*s->at)))) {
        const char c = *s->at++;
        const char *unknown = NULL;
        s->line += c == '\n';
        if (c == '\\' && quote != '\'' && *s->at) {
            if (*s->at == '\n') s->line++;
            else text_append(out, s->at, 1);
            s->at++;
        } else if (c == quote) quote = 0;
        else if (!quote && (c == '"' || c == '\'')) quote = c;
        else if (c == '$' && quote != '\'') unknown = expand(s, out);
        else if (c == '`' && quote != '\'') s->at--, unknown = expand(s, out);
        else text_append(out, &c, 1);
        if (unknown) w->unknown = unknown;
    }
    if (s->expanded > MAX_EXPANDED) return error_set(s->e, PL_USAGE, "%s:%u: its variables become more than %d bytes", s->name, w->line, (int)MAX_EXPANDED);
    return quote ? error_set(s->e, PL_USAGE, "%s:%u: a quote %c is not closed", s->name, w->line, quote) : PL_OK;
}

/* Blanks, escaped ends of lines and comments. */
static void skip_blanks(struct shell *s)
{
    for (;;) {
        if (s->at[0] == '\\' && s->at[1] == '\n') s->at += 2, s->line++;
        else if (s->at[0] == '\\' && s->at[1] == '\r' && s->at[2] == '\n') s->at += 3, s->line++;
        else if (*s->at != '\n' && isspace((unsigned char)*s->at)) s->at++;
        else break;
    }
    if (*s->at == '#') s->at += strcspn(s->at, "\n");
}

/* The words of the next command; none at the end of the file. */
static int read_command(struct shell *s, words *out)
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
        struct text word = {0};
        struct word w = {.line = s->line};
        const char *before = s->at;
        const bool failed = read_word(s, &word, &w);
        const bool redirect = *s->at == '>' && word.n && strspn(word.at, "0123456789") == word.n; /* 2>file */
        w.text = bump_string(&s->f->memory, word.n ? word.at : "");
        text_free(&word);
        if (failed) return s->e->code;
        if (s->at > before && !redirect) vec_push(out, w);
    }
    return PL_OK;
}

/* --- the command ------------------------------------------------------------------------------------------ */

static bool is_assignment(const char *word)
{
    size_t n = 0;
    while (isalnum((unsigned char)word[n]) || word[n] == '_') n++;
    return n && !isdigit((unsigned char)*word) && word[n] == '=';
}

static void assign(struct shell *s, const struct word *w)
{
    const size_t n = strcspn(w->text, "=");
    struct value *v = w->unknown ? value_new(&s->f->memory, VALUE_NULL) : value_string(&s->f->memory, w->text + n + 1);
    value_put(&s->f->memory, s->variables, bump_format(&s->f->memory, "%.*s", (int)n, w->text), v);
}

static const char *base_name(const char *path) { return strrchr(path, '/') ? strrchr(path, '/') + 1 : path; }

static bool is_script(const char *word) { return text_ends_with(word, ".py"); }

static bool is_launcher(const char *word)
{
    static const char *const names[] = {"torchrun", "deepspeed", "accelerate", "torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"};
    for (size_t i = 0; i < COUNT(names); i++)
        if (!strcmp(base_name(word), names[i])) return true;
    return false;
}

static bool is_python(const char *word) { return !strncmp(base_name(word), "python", 6); }
static bool is_factory(const char *word) { return !strcmp(base_name(word), "llamafactory-cli") || !strcmp(base_name(word), "lmf"); }

/* The word at which a training command begins, behind variables; words->n: it is another command. */
static uint32_t command_begin(const words *w)
{
    uint32_t i = 0;
    while (i < w->n && (is_assignment(w->at[i].text) || !strcmp(w->at[i].text, "export"))) i++;
    if (i < w->n && !strncmp(w->at[i].text, "--", 2)) return i; /* options alone */
    if (i < w->n && !strcmp(w->at[i].text, "trl") && i + 1 < w->n) return i;
    if (i < w->n && (is_launcher(w->at[i].text) || is_factory(w->at[i].text))) return i;
    for (uint32_t k = i + 1; i < w->n && is_python(w->at[i].text) && k < w->n; k++)
        if (is_script(w->at[k].text) || (!strcmp(w->at[k].text, "-m") && strcmp(w->at[k + 1 < w->n ? k + 1 : k].text, "pip"))) return i;
    return w->n;
}

/* A word that begins an option: not a negative number. */
static bool is_option(const char *word) { return word[0] == '-' && word[1] && !isdigit((unsigned char)word[1]) && word[1] != '.'; }

static struct value *word_value(struct shell *s, const struct word *w)
{
    struct value *v = yaml_scalar(&s->f->memory, w->text);
    v->line = w->line;
    return v;
}

/* The option's name as a key: --learning-rate is learning_rate. */
static char *option_key(struct shell *s, const char *option)
{
    option += strspn(option, "-");
    char *key = bump_format(&s->f->memory, "%.*s", (int)strcspn(option, "="), option);
    for (char *c = key; *c; c++)
        if (*c == '-') *c = '_';
    return key;
}

/* Reads the option at words[*i] and its values: none is true; several are a list. --no-x is x: false. */
static void put_option(struct shell *s, const words *w, uint32_t *i, uint32_t end, uint32_t most, struct value *map)
{
    const struct word *option = &w->at[(*i)++];
    const char *equals = strchr(option->text, '=');
    char *key = option_key(s, option->text);
    struct value *v;
    if (equals) v = word_value(s, &(struct word){.text = equals + 1, .line = option->line});
    else {
        const uint32_t from = *i;
        while (*i < end && *i - from < most && !is_option(w->at[*i].text)) ++*i;
        v = value_new(&s->f->memory, VALUE_LIST);
        for (uint32_t k = from; k < *i; k++) value_append(&s->f->memory, v, word_value(s, &w->at[k]));
        if (*i == from) {
            const bool no = !strncmp(key, "no_", 3) && strcmp(key, "no_cuda");
            v = value_bool(&s->f->memory, !no);
            if (no) key += 3;
        } else if (*i == from + 1) v = word_value(s, &w->at[from]);
    }
    v->line = option->line;
    if (*key) value_put(&s->f->memory, map, key, v);
}

/* Options of the launcher up to the script; *i is then behind the script. */
static struct value *launch_options(struct shell *s, const words *w, uint32_t *i)
{
    struct value *map = value_new(&s->f->memory, VALUE_MAP);
    while (*i < w->n && !is_script(w->at[*i].text)) {
        const char *word = w->at[*i].text;
        if (!strcmp(word, "-m") || !strcmp(word, "--module")) {
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

/* Arguments of the script: options, key=value, and files of settings, which are read first: options come later. */
static int add_arguments(struct shell *s, const words *w, uint32_t i)
{
    struct value *map = value_new(&s->f->memory, VALUE_MAP);
    while (i < w->n) {
        const struct word *word = &w->at[i];
        if (is_option(word->text)) put_option(s, w, &i, w->n, UINT32_MAX, map);
        else if (is_assignment(word->text)) {
            struct value *v = word_value(s, &(struct word){.text = strchr(word->text, '=') + 1, .line = word->line});
            value_put(&s->f->memory, map, option_key(s, word->text), v), i++;
        } else {
            if (!path_has_ending(word->text, ".yaml") && !path_has_ending(word->text, ".yml") && !path_has_ending(word->text, ".json"))
                return error_set(s->e, PL_USAGE, "%s:%u: the argument %.200s is neither an option nor a file of settings", s->name, word->line, word->text);
            if (foreign_follow(s->f, FOREIGN_PROGRAMS, word->text, s->name, s->e)) return error_prepend(s->e, "%s:%u", s->name, word->line);
            i++;
        }
    }
    return map->count ? foreign_add(s->f, FOREIGN_PROGRAMS, map, s->name, s->e) : PL_OK;
}

static int add_command(struct shell *s, const words *w, uint32_t i)
{
    for (uint32_t k = i; k < w->n; k++)
        if (w->at[k].unknown) return error_set(s->e, PL_USAGE, "%s:%u: %.200s has no value in this file; write the value", s->name, w->at[k].line, w->at[k].unknown);
    if (is_factory(w->at[i].text) || !strcmp(w->at[i].text, "trl")) return add_arguments(s, w, i + 2); /* llamafactory-cli train ... */
    if (!strncmp(w->at[i].text, "--", 2)) return add_arguments(s, w, i);
    struct value *launch = launch_options(s, w, &i);
    if (launch->count && foreign_add(s->f, PROGRAM_launch, launch, s->name, s->e)) return s->e->code;
    return add_arguments(s, w, i);
}

bool foreign_is_command(const char *text, const char *name)
{
    static const char *const names[] = {"python", "torchrun", "deepspeed", "accelerate", "llamafactory-cli", "trl", "export"};
    if (!strncmp(text, "#!", 2) || path_has_ending(name, ".sh") || path_has_ending(name, ".bash")) return true;
    while (*text) {
        while (isspace((unsigned char)*text)) text++;
        if (*text != '#') break;
        text += strcspn(text, "\n");
    }
    if (!strncmp(text, "--", 2) && isalpha((unsigned char)text[2])) return true;
    if (isupper((unsigned char)*text) && is_assignment(text)) return true; /* OMP_NUM_THREADS=4 torchrun ... */
    for (size_t i = 0; i < COUNT(names); i++) {
        const char *end = text + strlen(names[i]);
        if (!strncmp(text, names[i], strlen(names[i])) && (*end == ' ' || *end == '3')) return true;
    }
    return false;
}

int foreign_add_command(struct foreign *f, const char *text, const char *name, struct error *e)
{
    struct shell s = {.f = f, .name = bump_string(&f->memory, name), .at = text, .line = 1, .variables = value_new(&f->memory, VALUE_MAP), .e = e};
    words w = {0}, training = {0};
    uint32_t begin = 0;
    int rc = PL_OK;
    while (*s.at && !(rc = read_command(&s, &w))) {
        const uint32_t i = command_begin(&w);
        for (uint32_t k = 0; k < w.n && (is_assignment(w.at[k].text) || !strcmp(w.at[k].text, "export")); k++)
            if (is_assignment(w.at[k].text)) assign(&s, &w.at[k]);
        if (i == w.n) continue;
        if (training.n) {
            rc = error_set(e, PL_USAGE, "%s:%u: a second command that trains (the first is on line %u); expected one", s.name, w.at[i].line, training.at[begin].line);
            break;
        }
        for (uint32_t k = 0; k < w.n; k++) vec_push(&training, w.at[k]);
        begin = i;
    }
    if (!rc && !training.n) rc = error_set(e, PL_USAGE, "%s: it has no command that trains, such as python train.py, torchrun, deepspeed, accelerate launch or llamafactory-cli train", s.name);
    if (!rc) rc = add_command(&s, &training, begin);
    if (!rc && !f->entries.n && !f->left.n) rc = error_set(e, PL_USAGE, "%s: its command has no option that is known", s.name);
    vec_free(&w);
    vec_free(&training);
    return rc;
}

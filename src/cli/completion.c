/*
 * completion.c: `plimsoll completion SHELL`: prints a script that completes commands, options and
 * keys, made from the tables of which --help is made.
 *
 *     commands.def ─► commands     struct command ─► options     config.def ─► keys after --set
 *
 * Anything else is completed as a file. The scripts ask no program: they hold all words.
 */
#include "cli/cli.h"
#include "config/config_rows.h"

static const struct {
    const struct command *is;
    const char *what;
} commands[] = {
#define COMMAND(name, what) {&command_##name, what},
#include "cli/commands.def"
#undef COMMAND
};

/* Prints the keys, each with its equals sign. */
static void print_keys(void)
{
    for (int k = 0; k < CONFIG_KEYS; k++) printf("%s%s=", k ? " " : "", config_rows[k].path);
}

static void print_commands(const struct command *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++) printf("%s%s", i ? " " : "", list[i]->name);
}

static void print_all_commands(void)
{
    for (size_t i = 0; i < COUNT(commands); i++) printf("%s%s", i ? " " : "", commands[i].is->name);
}

/* Prints the options of a command with blanks between them. */
static void print_options(const struct command *c)
{
    struct text out = {0};
    command_options(c, " ", &out);
    printf("%s%s--help", out.n ? out.at : "", out.n ? " " : "");
    text_free(&out);
}

/* Calls `put` for each command and each subcommand; `over`: the command that it belongs to, or
 * NULL. */
static void each_command(void (*put)(const struct command *over, const struct command *c))
{
    for (size_t i = 0; i < COUNT(commands); i++) {
        const struct command *c = commands[i].is;
        if (!c->commands) put(NULL, c);
        for (size_t k = 0; k < c->n_commands; k++) put(c, c->commands[k]);
    }
}

/* --- bash and zsh ----------------------------------------------------------------------------- */

static void put_case(const struct command *over, const struct command *c)
{
    printf("        \"%s%s%s\") words=\"", over ? over->name : "", over ? " " : "", c->name);
    print_options(c);
    printf("\" ;;\n");
}

/* Prints a function that fills `words` for the command `name`. */
static void put_words(void)
{
    printf("_plimsoll_words() {\n    case $name in\n");
    each_command(put_case);
    for (size_t i = 0; i < COUNT(commands); i++) {
        if (!commands[i].is->commands) continue;
        printf("        \"%s\") words=\"", commands[i].is->name);
        print_commands(commands[i].is->commands, commands[i].is->n_commands);
        printf("\" ;;\n");
    }
    printf("        *) words=\"\" ;;\n    esac\n}\n");
    printf("_plimsoll_commands=\"");
    print_all_commands();
    printf("\"\n_plimsoll_keys=\"");
    print_keys();
    printf("\"\n");
}

/* Prints the words that begin a name with a subcommand, as a pattern. */
static void put_groups(void)
{
    bool any = false;
    for (size_t i = 0; i < COUNT(commands); i++) {
        if (!commands[i].is->commands) continue;
        printf("%s%s", any ? "|" : "", commands[i].is->name);
        any = true;
    }
}

static void print_bash(void)
{
    printf("# bash completion of plimsoll: source <(plimsoll completion bash)\n");
    put_words();
    printf("_plimsoll() {\n"
           "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} name=${COMP_WORDS[1]-} words\n"
           "    COMPREPLY=()\n"
           "    if [ \"$COMP_CWORD\" = 1 ]; then\n"
           "        COMPREPLY=($(compgen -W \"$_plimsoll_commands --help --version\" -- \"$cur\"))\n"
           "        return\n"
           "    fi\n"
           "    case $name in\n        ");
    put_groups();
    printf(")\n"
           "            if [ \"$COMP_CWORD\" -gt 2 ]; then name=\"$name ${COMP_WORDS[2]}\"; fi ;;\n"
           "    esac\n"
           "    _plimsoll_words\n"
           "    if [ \"$prev\" = --set ]; then\n"
           "        compopt -o nospace 2>/dev/null\n"
           "        COMPREPLY=($(compgen -W \"$_plimsoll_keys\" -- \"$cur\"))\n"
           "    elif [[ $cur == -* || \"$words\" != *--help* ]]; then\n"
           "        COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
           "    else\n"
           "        compopt -o default 2>/dev/null\n"
           "    fi\n"
           "}\n"
           "complete -F _plimsoll plimsoll\n");
}

static void print_zsh(void)
{
    printf("#compdef plimsoll\n"
           "# zsh completion of plimsoll: plimsoll completion zsh > a folder of $fpath/_plimsoll\n");
    put_words();
    printf("_plimsoll() {\n"
           "    local name=${words[2]-} line=(\"${words[@]}\") words\n"
           "    if (( CURRENT == 2 )); then\n"
           "        compadd -- ${=_plimsoll_commands} --help --version\n"
           "        return\n"
           "    fi\n"
           "    case $name in\n        ");
    put_groups();
    printf(")\n"
           "            if (( CURRENT > 3 )); then name=\"$name ${line[3]}\"; fi ;;\n"
           "    esac\n"
           "    _plimsoll_words\n"
           "    if [[ ${line[CURRENT-1]} == --set ]]; then\n"
           "        compadd -S '' -- ${=_plimsoll_keys}\n"
           "    elif [[ ${line[CURRENT]} == -* || $words != *--help* ]]; then\n"
           "        compadd -- ${=words}\n"
           "    else\n"
           "        _files\n"
           "    fi\n"
           "}\n"
           "if [[ ${zsh_eval_context[-1]-} == loadautofunc ]]; then _plimsoll \"$@\"\n"
           "else compdef _plimsoll plimsoll; fi\n");
}

/* --- fish ------------------------------------------------------------------------------------- */

static void put_fish(const struct command *over, const struct command *c)
{
    struct text out = {0};
    command_options(c, "\n", &out);
    for (char *word = out.at, *next; word && *word; word = next) {
        char *end = strchr(word, '\n');
        next = end ? end + 1 : NULL;
        if (end) *end = '\0';
        printf("complete -c plimsoll -n '__fish_seen_subcommand_from %s", over ? over->name : c->name);
        if (over) printf("; and __fish_seen_subcommand_from %s", c->name);
        printf("' %s %s\n", word[1] == '-' ? "-l" : "-s", word + (word[1] == '-' ? 2 : 1));
    }
    text_free(&out);
}

static void print_fish(void)
{
    printf("# fish completion of plimsoll: plimsoll completion fish | source\n");
    for (size_t i = 0; i < COUNT(commands); i++) {
        const struct command *c = commands[i].is;
        char what[512];
        size_t n = 0;
        for (const char *s = commands[i].what; *s && n + 2 < sizeof what; s++) {
            if (*s == '\'' || *s == '\\') what[n++] = '\\';
            what[n++] = *s;
        }
        what[n] = '\0';
        printf("complete -c plimsoll -n __fish_use_subcommand -f -a %s -d '%s'\n", c->name, what);
        if (!c->commands) continue;
        printf("complete -c plimsoll -n '__fish_seen_subcommand_from %s' -f -a '", c->name);
        print_commands(c->commands, c->n_commands);
        printf("'\n");
    }
    each_command(put_fish);
    printf("complete -c plimsoll -n '__fish_prev_arg_in --set' -f -a '");
    print_keys();
    printf("'\n");
}

/* --- the command ------------------------------------------------------------------------------ */

static int completion(struct options *o, struct error *e)
{
    static const struct {
        const char *name;
        void (*print)(void);
    } shells[] = {{"bash", print_bash}, {"zsh", print_zsh}, {"fish", print_fish}};
    const char *given = o->paths.n == 1 ? o->paths.at[0] : NULL;
    for (size_t i = 0; given && i < COUNT(shells); i++)
        if (!strcmp(given, shells[i].name)) {
            shells[i].print();
            return PL_OK;
        }
    return error_set(e, PL_USAGE, "expected bash, zsh or fish%s%s", given ? ", found " : "", given ? given : "");
}

const struct command command_completion = {
    "completion", "completion bash | zsh | fish",
    "Prints a script for a shell, which completes commands, options and keys after --set:\n"
    "\n"
    "  bash   source <(plimsoll completion bash)         in ~/.bashrc\n"
    "  zsh    source <(plimsoll completion zsh)          in ~/.zshrc, after compinit\n"
    "  fish   plimsoll completion fish | source          in ~/.config/fish/config.fish\n"
    "\n"
    "`make install` puts them where these shells look for them.",
    .shared = OPT_PATHS, .run = completion};

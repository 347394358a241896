/*
 * test_template.c: chat templates: the bytes of Jinja2 (tests/golden/templates, made by
 * make_templates.py), where bytes came from, limits, refusals, and which template a folder has.
 */
#include <time.h>

#include "io/file.h"
#include "io/json.h"
#include "text/template/template.h"

#include "harness.h"

#define GOLDEN "tests/golden/templates"

static struct value *parse(struct bump *b, const char *json)
{
    struct value *v = NULL;
    struct error e;
    if (json_parse(json, strlen(json), b, &v, &e)) fail_msg("%s in: %s", e.text, json);
    return v;
}

static struct value *read_json(struct bump *b, const char *path)
{
    struct value *v = NULL;
    struct error e;
    if (json_read_file(path, 16 << 20, b, &v, &e)) fail_msg("%s", e.text);
    return v;
}

/* Reads and renders; returns 0, or the code of the error. */
static int render(const char *source, const struct value *variables, struct rendered *out, struct error *e)
{
    struct template *t;
    *out = (struct rendered){0};
    if (template_read(&t, source, strlen(source), "test", e)) return e->code;
    const int rc = template_render(t, variables, out, e);
    template_close(t);
    return rc;
}

/* ---- against Jinja2 ---- */

static void check_ranges(const struct value *want, const struct byte_range *at, uint32_t n, const char *what)
{
    if (want->count != n) fail_msg("%s: %u ranges of answers, expected %u", what, n, want->count);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(at[i].begin, (uint32_t)want->items[i]->items[0]->number);
        assert_int_equal(at[i].end, (uint32_t)want->items[i]->items[1]->number);
    }
}

/* Compares a rendering with `golden`, which has "text" and "answers", or "fails". Returns whether
 * it fails here and not in Jinja2. */
static bool check_golden(const char *source, const struct value *variables, const struct value *golden,
                         const char *what)
{
    struct rendered out;
    struct error e = {0};
    const struct value *text = value_get(golden, "text");
    const int rc = render(source, variables, &out, &e);
    if (!rc && !text) fail_msg("%s: rendered, but Jinja2 fails: %s", what, value_get(golden, "fails")->text);
    if (rc) {
        assert_int_equal(rc, PL_USAGE);
        assert_non_null(strstr(e.text, "test, line "));
        if (text && getenv("VERBOSE")) printf("refused: %s: %s\n", what, e.text);
        return text != NULL;
    }
    if (strcmp(out.text.at, text->text)) fail_msg("%s\n  got      %s\n  expected %s", what, out.text.at, text->text);
    check_ranges(value_get(golden, "answers"), out.answers.at, out.answers.n, what);
    rendered_free(&out);
    return false;
}

/* What the renderer does not support fails; it never gives another text than Jinja2. VERBOSE=1
 * lists what fails. */
TEST(test_lines)
{
    struct bump b = {0};
    const struct value *root = read_json(&b, GOLDEN "/lines.json"), *lines = value_get(root, "lines");
    uint32_t refused = 0;
    for (uint32_t i = 0; i < lines->count; i++) {
        const char *source = value_get(lines->items[i], "template")->text;
        refused += check_golden(source, value_get(root, "variables"), lines->items[i], source);
    }
    assert_int_equal(lines->count, 649);
    assert_int_equal(refused, 203);
    bump_free(&b);
}

TEST(test_files)
{
    struct bump b = {0};
    struct names paths = {0};
    struct error e;
    const struct value *cases = read_json(&b, GOLDEN "/cases.json");
    assert_int_equal(dir_list_ending(GOLDEN, ".jinja", &paths, &e), PL_OK);
    assert_true(paths.n >= 14);
    for (uint32_t i = 0; i < paths.n; i++) {
        char *source, path[512], what[600];
        size_t n;
        snprintf(path, sizeof path, "%.*s.json", (int)strlen(paths.at[i]) - 6, paths.at[i]);
        const struct value *goldens = read_json(&b, path);
        assert_int_equal(file_read(paths.at[i], 1 << 20, &source, &n, &e), PL_OK);
        assert_int_equal(goldens->count, cases->count);
        for (uint32_t k = 0; k < cases->count; k++) {
            snprintf(what, sizeof what, "%s, case %u", paths.at[i], k);
            assert_false(check_golden(source, cases->items[k], goldens->items[k], what));
        }
        mem_free(source);
    }
    names_free(&paths);
    bump_free(&b);
}

/* ---- where bytes came from ---- */

/* Renders with data in the variables x, l, d and messages. Prints the text with data in [ ] and
 * answers in < >. */
static void check_marked(const char *source, const char *expected)
{
    struct bump b = {0};
    struct rendered out;
    struct error e = {0};
    const struct value *v =
        parse(&b, "{\"x\": \"abc def\", \"l\": [\"p\", \"q\"], \"d\": {\"k\": \"v\"}, \"n\": 12, \"bos_token\": "
                  "\"BOS\", \"my_token\": \"MINE\", \"html\": \"<&\","
                  " \"messages\": [{\"role\": \"user\", \"content\": \"u\"}, {\"role\": \"a b\"}]}");
    if (render(source, v, &out, &e)) fail_msg("%s in: %s", e.text, source);
    struct text marked = {0};
    uint32_t d = 0, a = 0;
    for (uint32_t i = 0; i <= out.text.n; i++) {
        if (a < out.answers.n && out.answers.at[a].end == i) text_printf(&marked, ">"), a++;
        if (d < out.data.n && out.data.at[d].end == i) text_printf(&marked, "]"), d++;
        if (d < out.data.n && out.data.at[d].begin == i) text_printf(&marked, "[");
        if (a < out.answers.n && out.answers.at[a].begin == i) text_printf(&marked, "<");
        if (i < out.text.n) text_append(&marked, out.text.at + i, 1);
    }
    if (strcmp(marked.at, expected)) fail_msg("%s\n  got      %s\n  expected %s", source, marked.at, expected);
    assert_int_equal(d, out.data.n);
    assert_int_equal(a, out.answers.n);
    text_free(&marked);
    rendered_free(&out);
    bump_free(&b);
}

TEST(test_origin)
{
    check_marked("a{{ x }}b{{ x }}{{ x }}", "a[abc def]b[abc defabc def]");
    check_marked("{{ 'q' + x + 'r' }}|{{ x ~ 1 ~ x }}", "q[abc def]r|[abc def]1[abc def]");
    check_marked("{{ ('q' + x + 'r')[:3] }}|{{ ('q' + x)[::-1] }}|{{ (x ~ 'z')[-1] }}|{{ x[0] }}",
                 "q[ab]|[fed cba]q|z|[a]");
    check_marked(
        "{{ (' ' ~ x ~ ' ') | trim }}|{{ x.strip('af') }}|{{ x | upper }}|{{ x.title() }}|{{ x | capitalize }}",
        "[abc def]|[bc de]|[ABC DEF]|[Abc Def]|[Abc def]");
    check_marked("{{ x.replace('b', 'TT') }}|{{ 'axc' | replace('x', x) }}|{{ x | replace('zz', '') }}",
                 "[a]TT[c def]|a[abc def]c|[abc def]");
    check_marked("{{ x.split(' ') | join('-') }}|{{ x.split(' ')[1] }}|{{ l | join(', ') }}",
                 "[abc]-[def]|[def]|[p], [q]");
    check_marked("{{ d | tojson }}|{{ [x, 1] | tojson }}|{{ d }}|{{ l }}|{{ ('' | safe) + html }}",
                 "{\"[k]\": \"[v]\"}|[\"[abc def]\", 1]|{'[k]': '[v]'}|['[p]', '[q]']|[&lt;&amp;]");
    check_marked("{{ '%s %s' | format(x, n) }}|{{ '<{}>'.format(x) }}|{{ x | indent(2, true) }}|{{ x * 2 }}",
                 "[abc def] 12|<[abc def]>|  [abc def]|[abc defabc def]");
    check_marked(
        "{{ n }}|{{ x | length }}|{{ bos_token }}{{ my_token }}|{% for c in 'ab' ~ l[0] %}{{ c }}.{% endfor %}",
        "12|7|BOSMINE|a.b.[p].");
    check_marked("{% set y %}<{{ x }}>{% endset %}{{ y }}{% macro m(z) %}({{ z }}){% endmacro %}{{ m(l[1]) }}{% filter "
                 "upper %}q{{ x }}{% endfilter %}",
                 "<[abc def]>([q])Q[ABC DEF]");
    check_marked(
        "{{ messages[0].role }}|{{ '<|' ~ messages[0].role ~ '|>' }}|{{ messages[0].content }}|{{ messages[1].role }}",
        "user|<|user|>|[u]|[a b]");
    check_marked("q{% generation %}z{{ x }}{% endgeneration %}{% generation %}w{% endgeneration %}{{ l[0] }}",
                 "q<z[abc def]w>[p]");
    check_marked("{% set ns = namespace(t='') %}{% for i in l %}{% set ns.t = ns.t + i + ';' %}{% endfor %}{{ ns.t "
                 "}}|{{ ns.t + 'a' }}|{{ ns.t + 'b' }}",
                 "[p];[q];|[p];[q];a|[p];[q];b");
}

/* ---- limits ---- */

static void check_fails(const char *source, const char *variables, const char *says)
{
    struct bump b = {0};
    struct rendered out;
    struct error e = {0};
    const int rc = render(source, parse(&b, variables), &out, &e);
    if (!rc) fail_msg("rendered: %.200s", source);
    assert_int_equal(rc, PL_USAGE);
    if (!strstr(e.text, says)) fail_msg("expected \"%s\" in: %s", says, e.text);
    assert_null(out.text.at);
    bump_free(&b);
}

TEST(test_limits)
{
    check_fails("{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}", "{}",
                "line 1: the template does not end: stopped after");
    check_fails("\n\n{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{}", "line 3: nested more than");
    check_fails("{{ 'a' * 1000000000 }}", "{}", "beyond 64 MiB");
    check_fails(
        "{% set ns = namespace(x='abcdefgh') %}{% for i in range(100) %}{% set ns.x = ns.x + ns.x %}{% endfor %}", "{}",
        "beyond 64 MiB");
    check_fails(
        "{% for i in range(100000) %}{{ x }}{% endfor %}",
        "{\"x\": \"0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"
        "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"
        "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"
        "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"
        "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"
        "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"
        "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789\"}",
        "beyond 64 MiB");
    check_fails(
        "{% set ns = namespace(x=[]) %}{% for i in range(5000) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
        "{}", "nested more than");
    check_fails(
        "{% set ns = namespace(x=[1]) %}{% for i in range(40) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
        "{}", "does not end");
    check_fails("{% set ns = namespace(x=[1]) %}{% for i in range(40) %}{% set ns.x = ns.x + ns.x %}{% endfor %}", "{}",
                "line 1: the template ");
    check_fails("{{ range(100000)|unique|list|length }}", "{}", "does not end"); /* comparisons, */
    check_fails("{{ ('\u00df' * 16000000)|upper }}", "{}", "does not end");        /* characters, */
    check_fails("{% set ns = namespace(x=[1]) %}{% for i in range(40) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ "
                "ns.x|tojson }}",
                "{}", "does not end");
    struct text names = {0};
    for (int i = 0; i < 40000; i++) text_printf(&names, "{%% set v%d = 1 %%}", i);
    check_fails(names.at, "{}", "does not end"); /* and names are work */
    text_free(&names);
    check_fails("{{ range(100001) }}", "{}", "more than 100000 elements");
    check_fails("{{ 9223372036854775807 + 1 }}", "{}", "beyond 64 bits");
    static const struct {
        const char *before, *part, *after;
    } deep[] = {{"{{ ", "(", ""},       {"{{ ", "not ", "1 }}"}, {"{{ ", "-", "1 }}"},
                {"", "{% if x %}", ""}, {"{{ ", "[", ""},        {"{{ ", "1 if 1 else ", "1 }}"}};
    for (size_t i = 0; i < COUNT(deep); i++) {
        struct text t = {0};
        struct error e = {0};
        struct template *parsed;
        text_printf(&t, "%s", deep[i].before);
        for (int k = 0; k < 10000; k++) text_printf(&t, "%s", deep[i].part);
        text_printf(&t, "%s", deep[i].after);
        assert_int_equal(template_read(&parsed, t.at, t.n, "test", &e), PL_USAGE);
        if (!strstr(e.text, "deep")) fail_msg("%s", e.text);
        assert_null(parsed);
        text_free(&t);
    }
}

/* Templates collect text in a namespace: a long conversation must not need memory for every state
 * of it. */
TEST(test_growth)
{
    static const char *const joins[] = {"ns.t ~ x ~ 'b'", "ns.t + x + 'b'"};
    for (size_t i = 0; i < COUNT(joins); i++) {
        struct bump b = {0};
        struct rendered out;
        struct error e = {0};
        char source[300];
        struct value *v = value_new(&b, VALUE_MAP);
        char x[401] = {0};
        value_put(&b, v, "x", value_string(&b, memset(x, 'a', 400)));
        snprintf(
            source, sizeof source,
            "{%% set ns = namespace(t='') %%}{%% for i in range(2000) %%}{%% set ns.t = %s %%}{%% endfor %%}{{ ns.t }}",
            joins[i]);
        if (render(source, v, &out, &e)) fail_msg("%s", e.text);
        assert_int_equal(out.text.n, 2000 * 401);
        assert_int_equal(out.data.n, 2000);
        rendered_free(&out);
        bump_free(&b);
    }
}

TEST(test_raise)
{
    check_fails("a\n{% for i in [1] %}\n{{ raise_exception('Roles must alternate: ' ~ x) }}{% endfor %}",
                "{\"x\": \"\\u00e9\"}",
                "test, line 3: the template refuses this conversation: Roles must alternate: \xc3\xa9");
    check_fails("{{ x.y.z }}", "{\"x\": {}}", "test, line 1: 'y' is undefined: it has no 'z'");
    check_fails("{{ [].append(1) }}", "{}", "'append' would change a list");
    check_fails("{{ '1' | from_json }}", "{}", "no filter from_json");
    check_fails("{{ x }}", "{\"x\": 99999999999999999999}",
                "the integer 99999999999999999999 of the data is beyond 64 bits");
    check_fails("{{ '%d' % 1 }}", "{}", "a string % values is not supported");
    check_fails("{{ '%d' | format(1) }}", "{}", "format replaces only %s");
    check_fails("{{ {}.items() }}", "{}", "a generator cannot be printed");
    check_fails("{% set g = [1] | map('string') %}{{ g | list }}{{ g | list }}", "{}", "come once");
}

/* ---- refusals ---- */

TEST(test_refused)
{
    static const char *const bad[][2] = {
        {"a\n{{ x | shuffle }}", "test, line 2: unknown filter 'shuffle'"},
        {"{% if f %}{{ x | nope }}{% endif %}", "unknown filter 'nope'"},
        {"{{ x is nope }}", "unknown test 'nope'"},
        {"\n\n{{ x.explode() }}", "line 3: unknown method 'explode'"},
        {"{{ lipsum() }}", "unknown function 'lipsum'"},
        {"{{ l | map('nope') | list }}", "unknown filter 'nope'"},
        {"{{ l | selectattr('a', 'nope') | list }}", "unknown test 'nope'"},
        {"{% include 'x' %}", "unknown statement 'include'"},
        {"{% import 'x' as y %}", "unknown statement 'import'"},
        {"{% call f() %}{% endcall %}", "unknown statement 'call'"},
        {"{% for i in x recursive %}{% endfor %}", "recursive"},
        {"{{ f(*a) }}", "* in the arguments"},
        {"{{ x.__class__ }}", "__class__"},
        {"{% macro f() %}{{ caller() }}{% endmacro %}", "'caller'"},
        {"{% macro f() %}{% generation %}{% endgeneration %}{% endmacro %}", "generation"},
        {"{{ x | tojson(nope=1) }}", "the filter 'tojson' has no such argument"},
        {"{{ x | upper(1) }}", "has too many arguments"},
        {"{{ x | replace('a') }}", "needs more arguments"},
        {"{% if x %}\n\n", "line 1: this tag has no end: {% endif %} is missing"},
        {"a {{ x ", "has no end"},
        {"a {# x ", "has no end"},
        {"{% raw %} x", "no {% endraw %}"},
        {"{{ 'abc }}", "no closing '"},
        {"{{ (1] }}", "unexpected ]"},
        {"{{ $ }}", "unexpected character"},
        {"{{ '\\ud800' }}", "no character"},
        {"{% break %}", "'break' outside of a loop"},
        {"{% set ns._x = 1 %}", "begin with _"},
        {"{{ 99999999999999999999 }}", "beyond 64 bits"},
        {"{{ a.b().c }}", "unknown method 'b'"},
        {"{% endfor %}", "unknown statement 'endfor'"},
        {"{% with a = 1 %}{% endwith %}", "unknown statement 'with'"},
        {"{% for i in x %}{% else %}{% endfor %}", "{% else %} outside of {% if %}"},
        {"{{ x | round }}", "unknown filter 'round'"},
        {"{{ x is divisibleby 3 }}", "unknown test 'divisibleby'"},
        {"{{ x.center(3) }}", "unknown method 'center'"},
        {"{{ loop.length }}", "loop.length is not supported"},
        {"{{ x | sort(reverse=true) }}", "the filter 'sort' has an argument that is not supported"},
        {"{{ 2 ** 3 }}", "the operator ** is not supported"},
        {"{{ +x }}", "the operator + before a value is not supported"},
        {"{{ 1.5 }}", "the number 1.5 is not supported"},
        {"{{ '\\101' }}", "the escape \\1 in a string is not supported"},
        {"{{ 1 < x < 3 }}", "chained comparisons"},
        {"{% set a, b = x %}", "several names"},
        {"\xff", "not UTF-8"},
    };
    for (size_t i = 0; i < COUNT(bad); i++) {
        struct template *t;
        struct error e = {0};
        if (!template_read(&t, bad[i][0], strlen(bad[i][0]), "test", &e)) fail_msg("accepted: %s", bad[i][0]);
        assert_int_equal(e.code, PL_USAGE);
        if (!strstr(e.text, bad[i][1])) fail_msg("expected \"%s\" in: %s", bad[i][1], e.text);
    }
}

/* ---- folders ---- */

static void put_file(const char *name, const char *text)
{
    char path[600];
    struct error e;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (file_write_atomic(path, text, strlen(text), &e)) fail_msg("%s", e.text);
}

/* NULL: an error that says `says`. */
static void check_open(const char *file, const char *name, const char *text, const char *says)
{
    struct template *t = NULL;
    struct error e = {0};
    char path[600];
    if (file && strchr(file, '.')) {
        snprintf(path, sizeof path, "%s/%s", folder, file);
        file = path;
    }
    const int rc = template_open(&t, folder, file, name, &e);
    if (!text) {
        assert_int_equal(rc, PL_USAGE);
        if (!strstr(e.text, says)) fail_msg("expected \"%s\" in: %s", says, e.text);
        return;
    }
    if (rc) fail_msg("%s", e.text);
    assert_string_equal(template_source(t), text);
    template_close(t);
}

TEST(test_open)
{
    struct error e;
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/plimsoll-template-XXXXXX", base ? base : "/tmp");
    assert_non_null(mkdtemp(folder));
    check_open(NULL, NULL, NULL, "data.template: chatml");
    put_file("tokenizer_config.json", "{\"bos_token\": \"<s>\", \"chat_template\": null}");
    check_open(NULL, NULL, NULL, "has no chat template");
    put_file("tokenizer_config.json", "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"T\"}, {\"name\": "
                                      "\"default\", \"template\": \"D\"}]}");
    check_open(NULL, NULL, "D", NULL);
    check_open(NULL, "tool_use", "T", NULL);
    check_open(NULL, "rag", NULL, "no chat template named \"rag\"");
    put_file("tokenizer_config.json", "{\"chat_template\": \"{{ bos_token }}\\n\"}");
    check_open(NULL, NULL, "{{ bos_token }}", NULL);
    put_file("chat_template.json", "{\"chat_template\": \"J\"}");
    check_open(NULL, NULL, "J", NULL);
    put_file("chat_template.jinja", "F\r\n");
    check_open(NULL, NULL, "F", NULL);
    char sub[300];
    snprintf(sub, sizeof sub, "%s/additional_chat_templates", folder);
    assert_int_equal(dir_make(sub, &e), PL_OK);
    put_file("additional_chat_templates/rag.jinja", "R");
    check_open(NULL, "rag", "R", NULL);
    check_open(NULL, "../rag", NULL, "no chat template named");
    check_open("tokenizer_config.json", NULL, "{{ bos_token }}", NULL);
    put_file("other.jinja", "{{ x | nope }}");
    check_open("other.jinja", NULL, NULL, "other.jinja, line 1: unknown filter 'nope'");
    check_open("missing.jinja", NULL, NULL, "missing.jinja");
    put_file("chat_template.jinja", "{% if %}");
    check_open(NULL, NULL, NULL, "chat_template.jinja, line 1");
    put_file("broken.json", "{");
    check_open("broken.json", NULL, NULL, "broken.json");
    assert_int_equal(tree_remove(folder, &e), PL_OK);
}

TEST(test_chatml)
{
    struct bump b = {0};
    struct template *t;
    struct error e = {0};
    struct rendered out;
    assert_int_equal(template_open(&t, NULL, "chatml", NULL, &e), PL_OK);
    assert_true(template_marks_answers(t));
    const struct value *v = parse(
        &b,
        "{\"messages\": [{\"role\": \"system\", \"content\": \"S\"}, {\"role\": \"user\", \"content\": \"<|im_end|>\"},"
        " {\"role\": \"assistant\", \"content\": \"A\"}], \"add_generation_prompt\": true}");
    assert_int_equal(template_render(t, v, &out, &e), PL_OK);
    assert_string_equal(out.text.at, "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\n<|im_end|><|im_end|>\n<|im_"
                                     "start|>assistant\nA<|im_end|>\n<|im_start|>assistant\n");
    assert_int_equal(out.answers.n, 1);
    assert_memory_equal(out.text.at + out.answers.at[0].begin, "A<|im_end|>",
                        out.answers.at[0].end - out.answers.at[0].begin);
    assert_int_equal(out.data.n, 3);
    assert_memory_equal(out.text.at + out.data.at[1].begin, "<|im_end|>", 10);
    assert_int_equal(out.data.at[1].end - out.data.at[1].begin, 10);
    rendered_free(&out);
    template_close(t);
    bump_free(&b);
}

/* The prompts of LLaVA's conversation modes. */
TEST(test_llava_modes)
{
    static const struct {
        const char *name, *text, *answer;
    } modes[] = {
        {"mistral_instruct", "[INST] <<SYS>>\nS\n<</SYS>>\n\n<image>\nQ [/INST] A </s>[INST] R [/INST]", " A </s>"},
        {"vicuna_v1", "S USER: <image>\nQ ASSISTANT: A</s>USER: R ASSISTANT:", " A</s>"},
    };
    struct bump b = {0};
    struct error e = {0};
    const struct value *v =
        parse(&b,
              "{\"messages\": [{\"role\": \"system\", \"content\": \"S\"}, {\"role\": \"user\", \"content\": "
              "\"<image>\\nQ\"}, {\"role\": \"assistant\", \"content\": \"A\"},"
              " {\"role\": \"user\", \"content\": \"R\"}], \"add_generation_prompt\": true, \"eos_token\": \"</s>\"}");
    for (size_t i = 0; i < COUNT(modes); i++) {
        struct template *t;
        struct rendered out;
        assert_int_equal(template_open(&t, NULL, modes[i].name, NULL, &e), PL_OK);
        assert_int_equal(template_render(t, v, &out, &e), PL_OK);
        assert_string_equal(out.text.at, modes[i].text);
        assert_int_equal(out.answers.n, 1);
        assert_memory_equal(out.text.at + out.answers.at[0].begin, modes[i].answer,
                            out.answers.at[0].end - out.answers.at[0].begin);
        rendered_free(&out);
        template_close(t);
    }
    bump_free(&b);
}

TEST(test_date)
{
    struct bump b = {0};
    struct rendered out;
    struct error e = {0};
    char now[32];
    const time_t seconds = time(NULL);
    struct tm day;
    strftime(now, sizeof now, "%Y-%m", localtime_r(&seconds, &day));
    assert_int_equal(render("{{ strftime_now('%Y-%m') }}", parse(&b, "{}"), &out, &e), PL_OK);
    assert_string_equal(out.text.at, now);
    rendered_free(&out);
    assert_int_equal(render("{{ strftime_now('%d %b %Y, %A %H:%M') }}",
                            parse(&b, "{\"strftime_now\": \"2026-01-31 12:30:00\"}"), &out, &e),
                     PL_OK);
    assert_string_equal(out.text.at, "31 Jan 2026, Saturday 12:30");
    rendered_free(&out);
    check_fails("{{ strftime_now('%d') }}", "{\"strftime_now\": \"today\"}", "expected a date like 2026-01-31");
    bump_free(&b);
}

MAIN(NULL, NULL)

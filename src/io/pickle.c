/*
 * pickle.c: see pth.h. Protocols 0 to 5, limited to the opcodes that build data: all that
 * torch.save has ever written, and containers around it.
 *
 * Sharing. A memo may reference one value several times, and a damaged pickle may put a list into
 * itself. Code that walks the tree must bound its depth (PICKLE_DEPTH) and visit each value once.
 *
 * Bounds. Values, items of containers, the stack and the memo are counted, and names are short,
 * because a few bytes could copy a name many times. So memory is at most the length of the input
 * times a constant, and never more than PICKLE_VALUES allows.
 */
#include "io/pth.h"

struct pickle_machine {
    const uint8_t *bytes;
    size_t n, at;
    struct bump *b;
    struct error *e;
    VEC(struct pickle *) stack;   /* NULL: a mark */
    VEC(struct pickle *) memo;
    uint32_t values, items;
    int rc;
};

static struct pickle *fail(struct pickle_machine *m, const char *what)
{
    if (!m->rc) m->rc = error_set(m->e, PL_USAGE, "damaged pickle at byte %zu: %s", m->at, what);
    return NULL;
}

/* --- bytes -------------------------------------------------------------------------- */

static const uint8_t *read_bytes(struct pickle_machine *m, uint64_t n)
{
    if (m->rc) return NULL;
    if (n > m->n - m->at) {
        fail(m, "it ends inside a value");
        return NULL;
    }
    m->at += n;
    return m->bytes + m->at - n;
}

static uint64_t read_number(struct pickle_machine *m, int bytes)
{
    const uint8_t *p = read_bytes(m, (uint64_t)bytes);
    uint64_t x = 0;
    for (int i = 0; p && i < bytes; i++) x |= (uint64_t)p[i] << (8 * i);
    return x;
}

/* Reads a line of text without its newline. */
static const char *read_line(struct pickle_machine *m, size_t *length)
{
    const uint8_t *from = m->bytes + m->at, *end = m->rc ? NULL : memchr(from, '\n', m->n - m->at);
    if (!end) {
        fail(m, "a line without an end");
        return NULL;
    }
    *length = (size_t)(end - from);
    m->at += *length + 1;
    return (const char *)from;
}

/* --- values -------------------------------------------------------------------------- */

static struct pickle *make(struct pickle_machine *m, enum pickle_kind kind)
{
    if (m->rc) return NULL;
    if (m->values++ >= PICKLE_VALUES) return fail(m, "more values than a checkpoint has");
    struct pickle *p = bump_alloc(m->b, sizeof *p);
    *p = (struct pickle){.kind = kind, .text = ""};
    return p;
}

static void push(struct pickle_machine *m, struct pickle *p)
{
    if (m->rc) return;
    if (m->stack.n >= PICKLE_VALUES) fail(m, "more values than a checkpoint has");
    else vec_push(&m->stack, p);
}

static struct pickle *pop(struct pickle_machine *m)
{
    if (m->rc) return NULL;
    if (!m->stack.n || !m->stack.at[m->stack.n - 1]) return fail(m, "the stack is empty");
    return m->stack.at[--m->stack.n];
}

static struct pickle *top(struct pickle_machine *m)
{
    struct pickle *p = pop(m);
    if (p) m->stack.n++;
    return p;
}

static void add_item(struct pickle_machine *m, struct pickle *to, struct pickle *item)
{
    if (m->rc || !item) return;
    if (m->items++ >= PICKLE_VALUES) {
        fail(m, "more values than a checkpoint has");
        return;
    }
    if (to->n == to->room) {
        uint32_t room = to->room ? to->room * 2 : 4;
        struct pickle **more = bump_alloc(m->b, room * sizeof *more);
        if (to->n) memcpy(more, to->items, to->n * sizeof *more);
        to->items = more;
        to->room = room;
    }
    to->items[to->n++] = item;
}

static void push_text(struct pickle_machine *m, enum pickle_kind kind, const void *bytes, size_t n)
{
    struct pickle *p = bytes ? make(m, kind) : NULL;
    if (!p) return;
    char *copy = bump_alloc(m->b, n + 1);
    memcpy(copy, bytes, n);
    copy[n] = 0;
    p->text = copy;
    p->length = n;
    push(m, p);
}

static void push_int(struct pickle_machine *m, int64_t x)
{
    struct pickle *p = make(m, PICKLE_INT);
    if (p) p->integer = x, p->real = (double)x;
    push(m, p);
}

static void push_simple(struct pickle_machine *m, enum pickle_kind kind, int64_t x)
{
    struct pickle *p = make(m, kind);
    if (p) p->integer = x;
    push(m, p);
}

/* Pushes little-endian two's complement of any length; beyond 64 bits it becomes a float. */
static void push_long(struct pickle_machine *m, uint64_t n)
{
    const uint8_t *p = read_bytes(m, n);
    if (!p) return;
    bool negative = n && p[n - 1] & 0x80;
    uint64_t x = negative ? ~0ull : 0;
    double real = negative ? -1 : 0;
    for (uint64_t i = 0; i < n && i < 8; i++) x = (x & ~(0xFFull << (8 * i))) | (uint64_t)p[i] << (8 * i);
    if (n <= 8) {
        push_int(m, (int64_t)x);
        return;
    }
    for (uint64_t i = n; i-- > 0;) real = real * 256 + p[i];
    struct pickle *v = make(m, PICKLE_FLOAT);
    if (v) v->real = real;
    push(m, v);
}

static void push_float(struct pickle_machine *m)
{
    const uint8_t *p = read_bytes(m, 8);
    struct pickle *v = p ? make(m, PICKLE_FLOAT) : NULL;
    uint64_t bits = 0;
    if (!v) return;
    for (int i = 0; i < 8; i++) bits = bits << 8 | p[i];
    memcpy(&v->real, &bits, sizeof bits);
    push(m, v);
}

/* --- containers ---------------------------------------------------------------------- */

/* Returns the stack index after the last mark. */
static uint32_t find_mark(struct pickle_machine *m)
{
    uint32_t k = m->stack.n;
    while (k && m->stack.at[k - 1]) k--;
    if (!k) fail(m, "a mark is missing");
    return k;
}

/* Moves the values above the last mark into `to` and removes the mark. */
static void gather(struct pickle_machine *m, struct pickle *to)
{
    uint32_t from = find_mark(m);
    if (m->rc || !to) return;
    for (uint32_t k = from; k < m->stack.n; k++) add_item(m, to, m->stack.at[k]);
    m->stack.n = from - 1;
}

static void push_gathered(struct pickle_machine *m, enum pickle_kind kind)
{
    struct pickle *p = make(m, kind);
    gather(m, p);
    if (!m->rc && kind == PICKLE_DICT && p->n % 2) fail(m, "a key without a value");
    push(m, p);
}

/* Reports whether `to` may be filled: lists item by item, dictionaries in pairs. The object of a
 * recorded call accepts items as well; they are dropped. */
static bool fillable(struct pickle_machine *m, const struct pickle *to, bool pairs)
{
    if (m->rc || to->kind == PICKLE_CALL) return false;
    if (to->kind != (pairs ? PICKLE_DICT : PICKLE_LIST))
        fail(m, pairs ? "no dictionary to add to" : "no list to add to");
    return !m->rc;
}

/* Adds the values above the mark to the container below it. */
static void extend(struct pickle_machine *m, bool pairs)
{
    uint32_t from = find_mark(m);
    if (m->rc) return;
    struct pickle *to = from < 2 ? NULL : m->stack.at[from - 2];
    if (!to) fail(m, "no container to add to");
    else if (pairs && (m->stack.n - from) % 2) fail(m, "a key without a value");
    else if (fillable(m, to, pairs)) gather(m, to);
    else m->stack.n = from - 1;
}

static void push_tuple(struct pickle_machine *m, int n)
{
    struct pickle *p = make(m, PICKLE_TUPLE), *item[3] = {0};
    for (int i = n; i-- > 0;) item[i] = pop(m);
    for (int i = 0; i < n && p; i++) add_item(m, p, item[i]);
    push(m, p);
}

static void set_item(struct pickle_machine *m, int n)
{
    struct pickle *value = pop(m), *key = n > 1 ? pop(m) : NULL, *to = top(m);
    if (m->rc || !fillable(m, to, n > 1)) return;
    if (key) add_item(m, to, key);
    add_item(m, to, value);
}

/* --- names and calls -------------------------------------------------------------------- */

static void push_name(struct pickle_machine *m, const char *module, size_t a, const char *name, size_t b)
{
    if (m->rc) return;
    if (a > PICKLE_NAME_MOST || b > PICKLE_NAME_MOST) {
        fail(m, "the name is too long");
        return;
    }
    struct text t = {0};
    text_append(&t, module, a);
    text_append(&t, " ", 1);
    text_append(&t, name, b);
    push_text(m, PICKLE_NAME, t.at, t.n);
    text_free(&t);
}

static void stack_name(struct pickle_machine *m)
{
    struct pickle *name = pop(m), *module = pop(m);
    if (m->rc) return;
    if (name->kind != PICKLE_STRING || module->kind != PICKLE_STRING) fail(m, "the name is not text");
    else push_name(m, module->text, module->length, name->text, name->length);
}

static void call(struct pickle_machine *m)
{
    struct pickle *arguments = pop(m), *what = pop(m), *p = make(m, PICKLE_CALL);
    if (m->rc) return;
    /* An OrderedDict is filled after it is created, like a plain dict. */
    if (pickle_is_name(what, "collections", "OrderedDict") && arguments->n == 0) p->kind = PICKLE_DICT;
    else {
        add_item(m, p, what);
        add_item(m, p, arguments);
    }
    push(m, p);
}

/* Keeps the state of an object with a call, and drops it for any other value. */
static void build(struct pickle_machine *m)
{
    struct pickle *state = pop(m), *p = top(m);
    if (!m->rc && p->kind == PICKLE_CALL && p->n < 3) add_item(m, p, state);
}

static void persistent(struct pickle_machine *m)
{
    struct pickle *what = pop(m), *p = make(m, PICKLE_PERSISTENT);
    if (!m->rc) add_item(m, p, what);
    push(m, p);
}

/* --- the memo ----------------------------------------------------------------------------- */

static void put_memo(struct pickle_machine *m, uint64_t k)
{
    struct pickle *p = top(m);
    if (m->rc) return;
    /* Memo numbers ascend with the position in the pickle, and each takes a byte or more. */
    if (k > m->at || k > PICKLE_VALUES) {
        fail(m, "memo number out of range");
        return;
    }
    while (m->memo.n <= k) vec_push(&m->memo, NULL);
    m->memo.at[k] = p;
}

static void get_memo(struct pickle_machine *m, uint64_t k)
{
    if (m->rc) return;
    if (k >= m->memo.n || !m->memo.at[k]) fail(m, "the memo was not set");
    else push(m, m->memo.at[k]);
}

/* --- protocol 0, in text ---------------------------------------------------------------- */

static void text_number(struct pickle_machine *m, bool real)
{
    char copy[64];
    size_t n;
    const char *line = read_line(m, &n);
    if (!line) return;
    if (n && line[n - 1] == 'L') n--;
    if (n >= sizeof copy) {
        fail(m, "the number is too long");
        return;
    }
    memcpy(copy, line, n);
    copy[n] = 0;
    if (!real && (!strcmp(copy, "00") || !strcmp(copy, "01"))) push_simple(m, PICKLE_BOOL, copy[1] == '1');
    else if (!real) push_int(m, strtoll(copy, NULL, 10));
    else {
        struct pickle *p = make(m, PICKLE_FLOAT);
        if (p) p->real = strtod(copy, NULL);
        push(m, p);
    }
}

static void text_name(struct pickle_machine *m)
{
    size_t a = 0, b = 0;
    const char *module = read_line(m, &a), *name = module ? read_line(m, &b) : NULL;
    if (name) push_name(m, module, a, name, b);
}

/* Reads a line of text, without the quotes of protocol 0 strings. Escapes stay as written. */
static void text_line(struct pickle_machine *m, bool quoted)
{
    size_t n;
    const char *line = read_line(m, &n);
    if (!line) return;
    if (quoted && n >= 2 && line[0] == line[n - 1] && (line[0] == '\'' || line[0] == '"'))
        push_text(m, PICKLE_STRING, line + 1, n - 2);
    else push_text(m, PICKLE_STRING, line, n);
}

static uint64_t text_index(struct pickle_machine *m)
{
    size_t n;
    const char *line = read_line(m, &n);
    uint64_t k = 0;
    for (size_t i = 0; line && i < n; i++) {
        if (line[i] < '0' || line[i] > '9' || k > UINT32_MAX) {
            fail(m, "the memo number is not a number");
            return 0;
        }
        k = k * 10 + (uint64_t)(line[i] - '0');
    }
    return k;
}

/* --- the machine -------------------------------------------------------------------------- */

static void sized_text(struct pickle_machine *m, enum pickle_kind kind, int bytes)
{
    uint64_t n = read_number(m, bytes);
    push_text(m, kind, read_bytes(m, n), n);
}

/* Executes one opcode; returns false after the last. */
static bool step(struct pickle_machine *m)
{
    const uint8_t *op = read_bytes(m, 1);
    if (!op) return false;
    switch (*op) {
    case '.': return false;
    case 0x80: read_bytes(m, 1); break;                             /* protocol */
    case 0x95: read_bytes(m, 8); break;                             /* frame */
    case '(': push(m, NULL); break;
    case '0': pop(m); break;
    case '1': m->stack.n = m->rc ? m->stack.n : find_mark(m); if (!m->rc) m->stack.n--; break;
    case '2': push(m, top(m)); break;
    case 'N': push_simple(m, PICKLE_NONE, 0); break;
    case 0x88: push_simple(m, PICKLE_BOOL, 1); break;
    case 0x89: push_simple(m, PICKLE_BOOL, 0); break;
    case 'I': case 'L': text_number(m, false); break;
    case 'F': text_number(m, true); break;
    case 'J': push_int(m, (int32_t)read_number(m, 4)); break;
    case 'K': push_int(m, (int64_t)read_number(m, 1)); break;
    case 'M': push_int(m, (int64_t)read_number(m, 2)); break;
    case 0x8a: push_long(m, read_number(m, 1)); break;
    case 0x8b: push_long(m, read_number(m, 4)); break;
    case 'G': push_float(m); break;
    case 'V': text_line(m, false); break;
    case 'S': text_line(m, true); break;
    case 'X': sized_text(m, PICKLE_STRING, 4); break;
    case 0x8c: sized_text(m, PICKLE_STRING, 1); break;
    case 0x8d: sized_text(m, PICKLE_STRING, 8); break;
    case 'T': sized_text(m, PICKLE_STRING, 4); break;
    case 'U': sized_text(m, PICKLE_STRING, 1); break;
    case 'B': sized_text(m, PICKLE_BYTES, 4); break;
    case 'C': sized_text(m, PICKLE_BYTES, 1); break;
    case 0x8e: case 0x96: sized_text(m, PICKLE_BYTES, 8); break;
    case ')': push_simple(m, PICKLE_TUPLE, 0); break;
    case ']': case 0x8f: push_simple(m, PICKLE_LIST, 0); break;
    case '}': push_simple(m, PICKLE_DICT, 0); break;
    case 't': push_gathered(m, PICKLE_TUPLE); break;
    case 'l': case 0x91: push_gathered(m, PICKLE_LIST); break;
    case 'd': push_gathered(m, PICKLE_DICT); break;
    case 0x85: push_tuple(m, 1); break;
    case 0x86: push_tuple(m, 2); break;
    case 0x87: push_tuple(m, 3); break;
    case 'a': set_item(m, 1); break;
    case 's': set_item(m, 2); break;
    case 'e': case 0x90: extend(m, false); break;
    case 'u': extend(m, true); break;
    case 'c': text_name(m); break;
    case 0x93: stack_name(m); break;
    case 'R': case 0x81: call(m); break;
    case 'b': build(m); break;
    case 'Q': persistent(m); break;
    case 'p': put_memo(m, text_index(m)); break;
    case 'q': put_memo(m, read_number(m, 1)); break;
    case 'r': put_memo(m, read_number(m, 4)); break;
    case 0x94: put_memo(m, m->memo.n); break;
    case 'g': get_memo(m, text_index(m)); break;
    case 'h': get_memo(m, read_number(m, 1)); break;
    case 'j': get_memo(m, read_number(m, 4)); break;
    default: fail(m, "the opcode builds no data"); break;
    }
    return !m->rc;
}

int pickle_read(const uint8_t *bytes, size_t n, size_t *used, struct bump *b, struct pickle **out, struct error *e)
{
    struct pickle_machine m = {.bytes = bytes, .n = n, .b = b, .e = e};
    while (step(&m)) {}
    *out = pop(&m);
    *used = m.at;
    vec_free(&m.stack);
    vec_free(&m.memo);
    return m.rc;
}

struct pickle *pickle_get(const struct pickle *dict, const char *key)
{
    for (uint32_t i = 0; dict && dict->kind == PICKLE_DICT && i + 1 < dict->n; i += 2)
        if (dict->items[i]->kind == PICKLE_STRING && !strcmp(dict->items[i]->text, key)) return dict->items[i + 1];
    return NULL;
}

bool pickle_is_name(const struct pickle *p, const char *module, const char *name)
{
    size_t n = strlen(module);
    return p && p->kind == PICKLE_NAME && !strncmp(p->text, module, n) && p->text[n] == ' ' &&
           !strcmp(p->text + n + 1, name);
}

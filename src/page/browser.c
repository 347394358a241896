/*
 * browser.c: what a plan asks of its machine, in a browser: the files that the page was given, no
 * GPU, one thread, and memory figures that are not known.
 */
#include "adapter/adapter.h"
#include "base/system.h"
#include "batch/text_source.h"
#include "calibrate/calibrate.h"
#include "cuda/cuda.h"
#include "data/dataset.h"
#include "page/page.h"
#include "run/kernel.h"
#include "text/pattern.h"

/* --- files ------------------------------------------------------------------------------------ */

static struct {
    VEC(char *) paths, texts;
} files;

static int find(const char *path)
{
    for (uint32_t i = 0; i < files.paths.n; i++)
        if (!strcmp(files.paths.at[i], path)) return (int)i;
    return -1;
}

void page_set_file(const char *path, const char *text)
{
    const int i = find(path);
    if (i < 0) {
        vec_push(&files.paths, mem_string(path));
        vec_push(&files.texts, mem_string(text));
        return;
    }
    mem_free(files.texts.at[i]);
    files.texts.at[i] = mem_string(text);
}

bool file_exists(const char *path) { return find(path) >= 0; }

bool dir_exists(const char *path)
{
    const size_t n = strlen(path);
    for (uint32_t i = 0; i < files.paths.n; i++)
        if (!strncmp(files.paths.at[i], path, n) && files.paths.at[i][n] == '/') return true;
    return false;
}

int file_read(const char *path, uint64_t limit, char **bytes, size_t *n, struct error *e)
{
    const int i = find(path);
    if (i < 0) return error_set(e, PL_USAGE, "%s: the page was not given this file", path);
    *n = strlen(files.texts.at[i]);
    if (*n > limit) return error_set(e, PL_USAGE, "%s has %zu bytes, more than such a file has", path, *n);
    *bytes = mem_string(files.texts.at[i]);
    return PL_OK;
}

int file_open(const char *path, uint64_t *bytes, struct error *e)
{
    if (bytes) *bytes = 0;
    error_set(e, PL_USAGE, "%s: a page opens no files", path);
    return -1;
}

/* --- the machine ------------------------------------------------------------------------------ */

void system_memory(struct system_memory *m) { *m = (struct system_memory){0}; }
void system_processors(struct system_processors *p) { *p = (struct system_processors){1, 1, 1, 0}; }
int omp_get_max_threads(void);
int omp_get_max_threads(void) { return 1; }
int omp_get_thread_num(void);
int omp_get_thread_num(void) { return 0; }

const struct kernel *const cpu_kernels[OP_COUNT];
const struct kernel *const ref_kernels[OP_COUNT];
bool cpu_multiplies_bf16(void) { return false; }
bool cpu_prefers_onednn(void) { return false; }
void cpu_identity(struct cpu_identity *c) { *c = (struct cpu_identity){.name = "a browser"}; }

int cuda_gpu(struct gpu *c, struct error *e)
{
    *c = (struct gpu){0};
    return error_set(e, PL_FAIL, "a browser has no GPU to compute on");
}
int cuda_gpus(void) { return 0; }

double time_factor(const struct planned *r) { return (void)r, 0; }
double time_scale(const struct planned *r) { return (void)r, 1; }

/* --- text ------------------------------------------------------------------------------------- */

/* Warns of nothing: the conversations of a run are on the user's machine. */
void text_warn_endless(const struct config *c, const struct model *m) { (void)c, (void)m; }

int python_compile(struct python_pattern **out, const char *expression, struct bump *memory, struct error *e)
{
    *out = NULL, (void)memory;
    return error_set(e, PL_USAGE, "%s: the page knows no regular expressions; give a list of names", expression);
}

/*
 * this_machine.c: see planned.h.
 */
#include "plimsoll.h"


#include <sys/resource.h>

#include "base/system.h"
#include "cost/profile.h"
#include "cuda/cuda.h"
#include "data/images/tiff.h"
#include "data/images/video.h"
#include "data/images/image.h"
#include "data/volumes/dicom.h"
#include "planning/planned.h"
#include "io/codec.h"
#include "io/file.h"
#include "io/table.h"

/* An optional library or plug-in. */
struct library {
    const char *name, *key; /* "libtiff"; its name in JSON */
    const char *does;       /* what the program uses it for */
    bool here;              /* it is part of this build and can be loaded */
    char version[64];       /* "": not known */
    char why[512];          /* of one that is part of the build and cannot be loaded; else "" */
};
enum { LIBRARIES = 8 };

struct machine {
    struct cpu_identity cpu;
    struct system_processors processors;
    int threads;                    /* that device.threads 0 uses */
    struct system_memory memory;
    /* memory.budget: auto and memory.host_budget: auto of a run on the CPU in this folder */
    uint64_t budget, host_budget;
    uint64_t gpu_budget, gpu_host_budget; /* the same on the GPU */
    int gpus;                       /* that can be used */
    struct gpu gpu;                 /* of which this is the first */
    char driver[32];                /* NVIDIA's kernel module; "": none is loaded */
    struct error no_gpu;            /* why none can be used */
    char profile[4200], gpu_profile[4200]; /* where measured profiles are, or would be; "": not known */
    bool measured, gpu_measured;    /* there are such files */
};

static void put_plugin(struct library *l, const char *file)
{
    char path[PLUGIN_PATH];
    l->here = plugin_find(file, path);
}

static void put_version(struct library *l, const char *version)
{
    l->here = version;
    /* without a distribution's suffix */
    snprintf(l->version, sizeof l->version, "%.*s", version ? (int)strcspn(version, "-") : 0, version);
}

static void find_libraries(struct library out[LIBRARIES])
{
    static const struct library all[LIBRARIES] = {
        {.name = "CUDA", .key = "cuda", .does = "NVIDIA GPUs"},
        {.name = "MPI", .key = "mpi", .does = "several ranks"},
        {.name = "oneDNN", .key = "onednn",
         .does = "matrix products on the CPU, to compare with ours (PLIMSOLL_ONEDNN=1)"},
        {.name = "FFmpeg", .key = "ffmpeg", .does = "video files"},
        {.name = "libtiff", .key = "tiff", .does = "TIFF images"},
        {.name = "libwebp", .key = "webp", .does = "WebP images"},
        {.name = "OpenJPEG", .key = "openjpeg", .does = "JPEG 2000 in DICOM files"},
        {.name = "libzstd", .key = "zstd", .does = "Parquet tables that are compressed with zstd"},
    };
    struct error e;
    memcpy(out, all, sizeof all);
    put_plugin(&out[0], "plimsoll-cuda.so");
    put_plugin(&out[1], "plimsoll-mpi.so");
    put_version(&out[2], onednn_version());
    put_version(&out[3], video_file_version(&e));
    if (e.code) snprintf(out[3].why, sizeof out[3].why, "%.500s", e.text);
    put_version(&out[4], tiff_version());
    put_version(&out[5], webp_version());
    put_version(&out[6], dicom_j2k_version());
    put_version(&out[7], zstd_version());
}

/* Finds the version in the first line of the driver's file: "NVRM version: NVIDIA UNIX x86_64
 * Kernel Module  550.54.15  Tue ...". */
static void find_driver(char out[32])
{
    char line[256] = "", word[32];
    int n = 0;
    FILE *f = fopen("/proc/driver/nvidia/version", "r");
    if (!f || !fgets(line, sizeof line, f)) line[0] = '\0';
    if (f) fclose(f);
    for (const char *at = line; !out[0] && sscanf(at, "%31s%n", word, &n) == 1; at += n)
        if (word[0] >= '0' && word[0] <= '9' && strchr(word, '.')) memcpy(out, word, sizeof word);
}

static void find_gpu(struct machine *m, const struct config *c)
{
    struct error e;
    struct profile p;
    const char *rule;
    find_driver(m->driver);
    if (cuda_gpu(&m->gpu, &m->no_gpu)) return;
    m->gpus = cuda_gpus();
    m->gpu_budget = planned_gpu_budget(m->gpu.memory_bytes);
    if (offload_budget(c, DEVICE_CUDA, true, NULL, 1, &m->gpu_host_budget, &rule, &e)) m->gpu_host_budget = 0;
    profile_here(&p, &m->gpu);
    if (!profile_gpu_path(p.name, m->gpu_profile, sizeof m->gpu_profile)) m->gpu_profile[0] = '\0';
    m->gpu_measured = file_exists(m->gpu_profile);
}

static void find_machine(struct machine *m)
{
    struct config c;
    struct profile p;
    struct error e;
    const char *rule;
    *m = (struct machine){0};
    config_init(&c);
    cpu_identity(&m->cpu);
    system_processors(&m->processors);
    system_memory(&m->memory);
    profile_default(&p, DEVICE_CPU, 0);
    m->threads = p.threads;
    m->budget = planned_cpu_budget(m->memory.available);
    if (offload_budget(&c, DEVICE_CPU, false, NULL, 1, &m->host_budget, &rule, &e)) m->host_budget = 0;
    if (!profile_path(m->threads, m->profile, sizeof m->profile)) m->profile[0] = '\0';
    m->measured = file_exists(m->profile);
    find_gpu(m, &c);
    config_free(&c);
}

/* --- printing --------------------------------------------------------------------------------- */

static void print_libraries(struct text *out)
{
    static const struct report_column columns[] = {{NULL, ""}, {NULL, ""}, {NULL, ""}};
    struct report_table t = REPORT_TABLE(columns);
    struct library l[LIBRARIES];
    char does[512];
    find_libraries(l);
    for (const struct library *x = l; x < l + LIBRARIES; x++) {
        snprintf(does, sizeof does, "%s%s%s", x->does, x->why[0] ? ": " : "", x->why);
        TABLE_ADD(&t, CELL(x->name),
                  CELL(!x->here        ? "no"
                       : x->version[0] ? x->version
                                       : "yes"),
                  CELL((const char *)does));
    }
    table_print(&t, 2, 0, out);
    table_free(&t);
}

/* Writes each library as its version, true if that is not known, or false. */
static void put_libraries(struct json_writer *w, const void *of)
{
    struct library l[LIBRARIES];
    (void)of;
    find_libraries(l);
    json_begin_map(w, "libraries");
    for (int i = 0; i < LIBRARIES; i++)
        if (l[i].here && l[i].version[0]) json_put_string(w, l[i].key, l[i].version);
        else json_put_bool(w, l[i].key, l[i].here);
    json_end(w);
}

void environment_print_version(bool json)
{
    struct text out = {0};
    struct cpu_identity cpu;
    cpu_identity(&cpu);
    if (json)
        PRINT_FACTS(2, FACT("version", PL_VERSION), FACT("processor", (const char *)cpu.name),
                    FACT("isa", (const char *)cpu.isa), FACT_CALL(put_libraries, NULL));
    else {
        print_libraries(&out);
        printf("plimsoll %s\n%s: %s\n%s", PL_VERSION, cpu.name, cpu.isa, out.at);
    }
    text_free(&out);
}

/* Limits of the process (ulimit) that runs meet. */
static const struct limit {
    const char *name, *key;
    int resource;
    bool bytes;
} limits[] = {{"address space", "address_space_bytes", RLIMIT_AS, true}, {"data", "data_bytes", RLIMIT_DATA, true},
              {"locked memory", "locked_bytes", RLIMIT_MEMLOCK, true},
              {"file size", "file_bytes", RLIMIT_FSIZE, true}, {"open files", "open_files", RLIMIT_NOFILE, false}};

static void print_limits(struct text *out)
{
    char size[32];
    struct rlimit l;
    text_printf(out, "Limits      ");
    for (size_t i = 0; i < COUNT(limits); i++) {
        if (getrlimit((__rlimit_resource_t)limits[i].resource, &l)) continue;
        text_printf(out, "%s%s ", i ? ", " : "", limits[i].name);
        if (l.rlim_cur == RLIM_INFINITY) text_printf(out, "unlimited");
        else if (limits[i].bytes) text_printf(out, "%s", size_print(l.rlim_cur, size));
        else text_printf(out, "%llu", (unsigned long long)l.rlim_cur);
    }
    text_printf(out, "\n");
}

static void put_limits(struct json_writer *w, const void *of)
{
    struct rlimit l;
    (void)of;
    json_begin_map(w, "limits");
    for (size_t i = 0; i < COUNT(limits); i++) {
        if (getrlimit((__rlimit_resource_t)limits[i].resource, &l)) continue;
        if (l.rlim_cur == RLIM_INFINITY) json_put_null(w, limits[i].key);
        else json_put_uint(w, limits[i].key, l.rlim_cur);
    }
    json_end(w);
}

static void print_profile(const char *path, bool measured, const char *how, struct text *out)
{
    if (measured) text_printf(out, "            measured: %s\n", path);
    else
        text_printf(
            out,
            "            not measured: predicted times are estimates; `plimsoll bench --calibrate%s` measures it\n",
            how);
}

static void print_gpu(const struct machine *m, struct text *out)
{
    char size[32], host[32];
    if (m->no_gpu.code) {
        text_printf(out, "GPU         none that can be used: %s%s%s\n", m->no_gpu.text,
                    m->driver[0] ? "; there is the driver " : "", m->driver);
        return;
    }
    text_printf(out, "GPU         %s, compute capability %d.%d, %s%s%s\n", m->gpu.name, m->gpu.capability / 10,
                m->gpu.capability % 10, size_print(m->gpu.memory_bytes, size), m->driver[0] ? ", driver " : "",
                m->driver);
    if (m->gpus > 1) text_printf(out, "            the first of %d\n", m->gpus);
    text_printf(out, "            memory.budget: auto is %s, memory.host_budget: auto %s\n",
                size_print(m->gpu_budget, size), size_print(m->gpu_host_budget, host));
    print_profile(m->gpu_profile, m->gpu_measured, " --set device=cuda", out);
}

static void print_cpu(const struct machine *m, struct text *out)
{
    const struct system_processors *p = &m->processors;
    char size[32], other[32];
    text_printf(out, "Processor   %s: %s\n            %u processor%s", m->cpu.name, m->cpu.isa, p->online,
                p->online == 1 ? "" : "s");
    if (p->allowed != p->online) text_printf(out, ", of which this process may use %u", p->allowed);
    if (p->quota > 0) text_printf(out, ", a quota of %.3g", p->quota);
    text_printf(out, "; device.threads 0 is %d thread%s\n", m->threads, m->threads == 1 ? "" : "s");
    print_profile(m->profile, m->measured, "", out);
    text_printf(out, "Memory      %s, %s free", size_print(m->memory.total, size),
                size_print(m->memory.available, other));
    if (m->memory.swap) text_printf(out, ", %s of swap", size_print(m->memory.swap, size));
    text_printf(out, "\n            memory.budget: auto is %s", size_print(m->budget, size));
    if (m->host_budget) text_printf(out, ", memory.host_budget: auto %s on the disk", size_print(m->host_budget, size));
    text_printf(out, "\n");
}

static void put_gpu(struct json_writer *w, const void *of)
{
    const struct machine *m = of;
    PUT_FACTS(w, FACT_MAP("gpu", FACT("name", (const char *)m->gpu.name), FACT("capability", m->gpu.capability),
                          FACT("memory_bytes", m->gpu.memory_bytes), FACT("budget_bytes", m->gpu_budget),
                          FACT("host_budget_bytes", m->gpu_host_budget),
                          FACT("profile", m->gpu_measured ? (const char *)m->gpu_profile : NULL)));
}

static void put_machine(const struct machine *m)
{
    PRINT_FACTS(2, FACT("version", PL_VERSION), FACT("processor", (const char *)m->cpu.name),
                FACT("isa", (const char *)m->cpu.isa), FACT("processors", m->processors.online),
                FACT("processors_allowed", m->processors.allowed),
                FACT_IF(m->processors.quota > 0, "processor_quota", m->processors.quota), FACT("threads", m->threads),
                FACT("memory_bytes", m->memory.total), FACT("free_bytes", m->memory.available),
                FACT("swap_bytes", m->memory.swap), FACT("budget_bytes", m->budget),
                FACT("host_budget_bytes", m->host_budget),
                FACT("profile", m->measured ? (const char *)m->profile : NULL), FACT_CALL(put_limits, NULL),
                FACT("gpus", m->gpus), FACT_IF(m->driver[0], "driver", (const char *)m->driver),
                FACT_IF(m->no_gpu.code, "no_gpu", (const char *)m->no_gpu.text),
                FACT_CALL_IF(!m->no_gpu.code, put_gpu, m), FACT_CALL(put_libraries, NULL));
}

void environment_print_machine(bool json)
{
    struct text out = {0};
    struct machine m;
    find_machine(&m);
    text_printf(&out, "Plimsoll    %s\n", PL_VERSION);
    print_cpu(&m, &out);
    print_limits(&out);
    print_gpu(&m, &out);
    text_printf(&out, "Libraries of this build\n");
    print_libraries(&out);
    text_printf(&out, "`plimsoll doctor RUN.yaml` diagnoses the memory of a run.\n");
    if (json) put_machine(&m);
    else fputs(out.at, stdout);
    text_free(&out);
}

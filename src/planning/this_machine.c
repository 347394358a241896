/*
 * this_machine.c: see this_machine.h.
 */
#include "planning/this_machine.h"

#include "cost/profile.h"
#include "cuda/cuda.h"
#include "data/images/tiff.h"
#include "data/images/video.h"
#include "data/images/image.h"
#include "data/volumes/dicom.h"
#include "planning/planned.h"
#include "io/codec.h"
#include "io/file.h"

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

void environment_libraries(struct library out[LIBRARIES])
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

void environment_machine(struct machine *m)
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

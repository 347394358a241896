/*
 * environment.c: see environment.h.
 */
#include "plimsoll.h"

#include "cli/environment.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "planning/this_machine.h"
#include "io/json.h"

static void print_libraries(struct text *out)
{
    struct library l[LIBRARIES];
    environment_libraries(l);
    for (int i = 0; i < LIBRARIES; i++)
        text_printf(out, "  %-9s %-9.20s %s%s%s\n", l[i].name,
                    !l[i].here        ? "no"
                    : l[i].version[0] ? l[i].version
                                      : "yes",
                    l[i].does, l[i].why[0] ? ": " : "", l[i].why);
}

/* Each is its version, true if that is not known, or false. */
static void put_libraries(struct json_writer *w)
{
    struct library l[LIBRARIES];
    environment_libraries(l);
    json_begin_map(w, "libraries");
    for (int i = 0; i < LIBRARIES; i++)
        if (l[i].here && l[i].version[0]) json_put_string(w, l[i].key, l[i].version);
        else json_put_bool(w, l[i].key, l[i].here);
    json_end(w);
}

static void put_cpu(struct json_writer *w, const struct cpu_identity *cpu)
{
    json_put_string(w, "version", PL_VERSION);
    json_put_string(w, "processor", cpu->name);
    json_put_string(w, "isa", cpu->isa);
}

static void print_text(struct text *out)
{
    fputs(out->at, stdout);
    text_free(out);
}

void print_version(bool json)
{
    struct text out = {0};
    struct json_writer w = {.out = &out, .indent = 2};
    struct cpu_identity cpu;
    cpu_identity(&cpu);
    if (json) {
        json_begin_map(&w, NULL);
        put_cpu(&w, &cpu);
        put_libraries(&w);
        json_end(&w);
        text_printf(&out, "\n");
    } else {
        text_printf(&out, "plimsoll %s\n%s: %s\n", PL_VERSION, cpu.name, cpu.isa);
        print_libraries(&out);
    }
    print_text(&out);
}

/* Limits of the process (ulimit) that runs meet. */
static const struct limit {
    const char *name, *key;
    int resource;
    bool bytes;
} limits[] = {
    {"address space", "address_space_bytes", RLIMIT_AS, true}, {"data", "data_bytes", RLIMIT_DATA, true},
    {"locked memory", "locked_bytes", RLIMIT_MEMLOCK, true},   {"file size", "file_bytes", RLIMIT_FSIZE, true},
    {"open files", "open_files", RLIMIT_NOFILE, false},
};

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

static void put_limits(struct json_writer *w)
{
    struct rlimit l;
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

static void put_cpu_facts(struct json_writer *w, const struct machine *m)
{
    json_put_uint(w, "processors", m->processors.online);
    json_put_uint(w, "processors_allowed", m->processors.allowed);
    if (m->processors.quota > 0) json_put_number(w, "processor_quota", m->processors.quota);
    json_put_int(w, "threads", m->threads);
    json_put_uint(w, "memory_bytes", m->memory.total);
    json_put_uint(w, "free_bytes", m->memory.available);
    json_put_uint(w, "swap_bytes", m->memory.swap);
    json_put_uint(w, "budget_bytes", m->budget);
    json_put_uint(w, "host_budget_bytes", m->host_budget);
    if (m->measured) json_put_string(w, "profile", m->profile);
    else json_put_null(w, "profile");
}

static void put_gpu(struct json_writer *w, const struct machine *m)
{
    json_put_int(w, "gpus", m->gpus);
    if (m->driver[0]) json_put_string(w, "driver", m->driver);
    if (m->no_gpu.code) {
        json_put_string(w, "no_gpu", m->no_gpu.text);
        return;
    }
    json_begin_map(w, "gpu");
    json_put_string(w, "name", m->gpu.name);
    json_put_int(w, "capability", m->gpu.capability);
    json_put_uint(w, "memory_bytes", m->gpu.memory_bytes);
    json_put_uint(w, "budget_bytes", m->gpu_budget);
    json_put_uint(w, "host_budget_bytes", m->gpu_host_budget);
    if (m->gpu_measured) json_put_string(w, "profile", m->gpu_profile);
    else json_put_null(w, "profile");
    json_end(w);
}

void print_machine(bool json)
{
    struct text out = {0};
    struct json_writer w = {.out = &out, .indent = 2};
    struct machine m;
    environment_machine(&m);
    if (json) {
        json_begin_map(&w, NULL);
        put_cpu(&w, &m.cpu);
        put_cpu_facts(&w, &m);
        put_limits(&w);
        put_gpu(&w, &m);
        put_libraries(&w);
        json_end(&w);
        text_printf(&out, "\n");
    } else {
        text_printf(&out, "Plimsoll    %s\n", PL_VERSION);
        print_cpu(&m, &out);
        print_limits(&out);
        print_gpu(&m, &out);
        text_printf(&out, "Libraries of this build\n");
        print_libraries(&out);
        text_printf(&out, "`plimsoll doctor RUN.yaml` diagnoses the memory of a run.\n");
    }
    print_text(&out);
}

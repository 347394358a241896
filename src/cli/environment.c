/*
 * environment.c: prints what this build can use (`plimsoll --version`) and the machine (`plimsoll
 * doctor` without a run file).
 */
#include "plimsoll.h"

#include "cli/cli.h"

#include <sys/resource.h>

#include "planning/this_machine.h"
#include "io/table.h"

static void print_libraries(struct text *out)
{
    static const struct report_column columns[] = {{NULL, ""}, {NULL, ""}, {NULL, ""}};
    struct report_table t = REPORT_TABLE(columns);
    struct library l[LIBRARIES];
    char does[512];
    environment_libraries(l);
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
    environment_libraries(l);
    json_begin_map(w, "libraries");
    for (int i = 0; i < LIBRARIES; i++)
        if (l[i].here && l[i].version[0]) json_put_string(w, l[i].key, l[i].version);
        else json_put_bool(w, l[i].key, l[i].here);
    json_end(w);
}

void print_version(bool json)
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

void print_machine(bool json)
{
    struct text out = {0};
    struct machine m;
    environment_machine(&m);
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

/*
 * monitor.c: see monitor.h.
 */
#include "train/monitor.h"

#include <inttypes.h>
#include <stdio.h>

void monitor_read(struct memory_state *m, const struct run *r)
{
    *m = (struct memory_state){.allocated = r->planned.plan.peak.bytes, .reserved = r->device.bytes[SPACE_DEVICE], .peak = plan_arena(&r->planned.plan)};
    system_memory(&m->host);
    system_process(&m->process);
    m->free = m->host.available;
    m->total = m->host.total;
    if (r->device.ops->memory) r->device.ops->memory(&r->device, &m->free, &m->total);
}

double monitor_utilization(const struct memory_state *m)
{
    return m->total ? (double)(m->total - min_u64(m->free, m->total)) / (double)m->total : 0;
}

void monitor_log(const struct memory_state *m, const struct run *r, int64_t step)
{
    char size[7][32];
    log_note("[Step %" PRId64
             "] %s: Alloc=%s Reserved=%s (%.1f%% of Total) Peak=%s Free=%s Total=%s; host: Resident=%s Available=%s",
             step, r->planned.kind == DEVICE_CUDA ? "GPU" : "CPU", size_print(m->allocated, size[0]),
             size_print(m->reserved, size[1]), m->total ? 100 * (double)m->reserved / (double)m->total : 0,
             size_print(m->peak, size[2]), size_print(m->free, size[3]), size_print(m->total, size[4]),
             size_print(m->process.resident, size[5]), size_print(m->host.available, size[6]));
}

void monitor_members(const struct memory_state *m, char *out, size_t room)
{
    snprintf(out, room,
             ",\"memory_allocated\":%" PRIu64 ",\"memory_reserved\":%" PRIu64 ",\"memory_peak\":%" PRIu64
             ",\"memory_free\":%" PRIu64 ",\"memory_total\":%" PRIu64
             ",\"memory_utilization\":%.4f,\"host_resident\":%" PRIu64 ",\"host_anonymous\":%" PRIu64
             ",\"host_resident_peak\":%" PRIu64 ",\"host_available\":%" PRIu64 ",\"host_total\":%" PRIu64,
             m->allocated, m->reserved, m->peak, m->free, m->total, monitor_utilization(m), m->process.resident,
             m->process.anonymous, m->process.resident_peak, m->host.available, m->host.total);
}

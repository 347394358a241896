/*
 * monitor.c: see monitor.h.
 */
#include "train/monitor.h"

#include <inttypes.h>
#include <stdio.h>

void monitor_read(struct memory_state *m, const struct run *r)
{
    *m = (struct memory_state){.allocated = r->plan.peak.bytes, .reserved = r->device.bytes[SPACE_DEVICE], .peak = plan_arena(&r->plan)};
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
    log_note("[Step %" PRId64 "] %s: Alloc=%.2fGB Reserved=%.2fGB (%.1f%%) Peak=%.2fGB Free=%.2fGB Total=%.2fGB; host: Resident=%.2fGB Available=%.2fGB",
             step, r->device.kind == DEVICE_CUDA ? "GPU" : "CPU", 1e-9 * (double)m->allocated, 1e-9 * (double)m->reserved, 100 * monitor_utilization(m),
             1e-9 * (double)m->peak, 1e-9 * (double)m->free, 1e-9 * (double)m->total, 1e-9 * (double)m->process.resident, 1e-9 * (double)m->host.available);
}

void monitor_members(const struct memory_state *m, char *out, size_t room)
{
    snprintf(out, room,
             ",\"memory_allocated\":%" PRIu64 ",\"memory_reserved\":%" PRIu64 ",\"memory_peak\":%" PRIu64 ",\"memory_free\":%" PRIu64
             ",\"memory_total\":%" PRIu64 ",\"memory_utilization\":%.4f,\"host_resident\":%" PRIu64 ",\"host_anonymous\":%" PRIu64 ",\"host_resident_peak\":%" PRIu64
             ",\"host_available\":%" PRIu64 ",\"host_total\":%" PRIu64,
             m->allocated, m->reserved, m->peak, m->free, m->total, monitor_utilization(m), m->process.resident, m->process.anonymous, m->process.resident_peak,
             m->host.available, m->host.total);
}

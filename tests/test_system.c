/*
 * test_system.c: memory and processors of the machine and of control groups, from files that are
 * written as the kernel writes them.
 */
#include <sched.h>

#include "base/system.h"
#include "io/file.h"
#include "run/device.h"

#include "harness.h"

static char root[] = "/tmp/plimsoll-system-XXXXXX";

/* Writes a file below the root folder, and the folders above it. */
static void put(const char *path, const char *text)
{
    char all[512], folder[512];
    struct error e;
    snprintf(all, sizeof all, "%s/%s", root, path);
    if (path_dir(all, folder, sizeof folder, &e) || dir_make(folder, &e)) fail_msg("%s", e.text);
    FILE *f = fopen(all, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

/* A machine of 16 GiB with 10 GiB available and 1 GiB of free swap, without control groups. */
static int make_machine(void **state)
{
    strcpy(root + strlen(root) - 6, "XXXXXX");
    if (!mkdtemp(root)) return 1;
    put("proc/meminfo", "MemTotal:       16777216 kB\nMemFree:         1048576 kB\nMemAvailable:   10485760 "
                        "kB\nSwapTotal:       2097152 kB\nSwapFree:        1048576 kB\n");
    return 0;
}

static int remove_machine(void **state)
{
    struct error e;
    return tree_remove(root, &e);
}

static void expect_mib(uint64_t total, uint64_t available, uint64_t swap)
{
    struct system_memory m;
    system_memory_in(root, &m);
    assert_int_equal(m.total >> 20, total);
    assert_int_equal(m.available >> 20, available);
    assert_int_equal(m.swap >> 20, swap);
}

TEST_WITH(test_machine, make_machine, remove_machine)
{
    expect_mib(16384, 10240, 1024);
    put("proc/self/cgroup", "0::/user.slice/run.scope\n");
    put("sys/fs/cgroup/user.slice/run.scope/memory.max", "max\n");
    put("sys/fs/cgroup/user.slice/run.scope/memory.current", "1073741824\n");
    expect_mib(16384, 10240, 1024);
}

/* The limit of a group above the process's own counts too; pages of files are not in use. */
TEST_WITH(test_nested, make_machine, remove_machine)
{
    put("proc/self/cgroup", "0::/user.slice/run.scope\n");
    put("sys/fs/cgroup/user.slice/run.scope/memory.max", "max\n");
    put("sys/fs/cgroup/user.slice/run.scope/memory.current", "1073741824\n");
    put("sys/fs/cgroup/user.slice/memory.max", "8589934592\n");
    put("sys/fs/cgroup/user.slice/memory.current", "3221225472\n");
    expect_mib(8192, 5120, 0);
    put("sys/fs/cgroup/user.slice/memory.stat", "anon 1073741824\nfile 2147483648\ninactive_anon 0\nactive_anon "
                                                "1073741824\ninactive_file 1073741824\nactive_file 536870912\n");
    expect_mib(8192, 6656, 0);
    put("sys/fs/cgroup/user.slice/run.scope/memory.max", "2147483648\n");
    expect_mib(2048, 1024, 0);
}

/* A container sees its own group as the root. */
TEST_WITH(test_container, make_machine, remove_machine)
{
    put("proc/self/cgroup", "0::/\n");
    put("sys/fs/cgroup/memory.max", "4294967296\n");
    put("sys/fs/cgroup/memory.current", "5368709120\n");
    expect_mib(4096, 0, 0);
}

TEST_WITH(test_version_1, make_machine, remove_machine)
{
    put("proc/self/cgroup", "12:cpuset:/\n9:memory:/docker/abc/job\n1:name=systemd:/docker/abc\n0::/\n");
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("sys/fs/cgroup/memory/memory.usage_in_bytes", "1073741824\n");
    expect_mib(16384, 10240, 1024);
    put("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "6442450944\n");
    put("sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes", "3221225472\n");
    put("sys/fs/cgroup/memory/docker/abc/memory.stat",
        "cache 0\ninactive_file 999999999999\ntotal_inactive_file 1073741824\ntotal_active_file 0\n");
    expect_mib(6144, 4096, 0);
}

TEST(test_here)
{
    struct system_memory m;
    system_memory(&m);
    assert_true(m.total > 0 && m.available > 0 && m.available <= m.total);
}

static void expect_quota(double quota, uint32_t most)
{
    struct system_processors p;
    system_processors_in(root, &p);
    assert_true(fabs(p.quota - quota) < 1e-9);
    assert_int_equal(p.usable, p.allowed < most ? p.allowed : most);
}

/* The lowest quota of the groups counts, rounded up to whole threads. */
TEST_WITH(test_quota, make_machine, remove_machine)
{
    expect_quota(0, UINT32_MAX);
    put("proc/self/cgroup", "0::/user.slice/run.scope\n");
    put("sys/fs/cgroup/user.slice/run.scope/cpu.max", "max 100000\n");
    expect_quota(0, UINT32_MAX);
    put("sys/fs/cgroup/user.slice/cpu.max", "150000 100000\n");
    expect_quota(1.5, 2);
    put("sys/fs/cgroup/user.slice/run.scope/cpu.max", "50000 100000\n");
    expect_quota(0.5, 1);
}

TEST_WITH(test_quota_1, make_machine, remove_machine)
{
    put("proc/self/cgroup", "12:cpuset:/\n5:cpu,cpuacct:/docker/abc\n4:cpuacct2:/wrong\n0::/\n");
    put("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
    put("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    expect_quota(0, UINT32_MAX);
    put("sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us", "100000\n");
    put("sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us", "100000\n");
    expect_quota(1, 1);
}

/* device.threads 0: the processors on which the process may run, as taskset and Slurm set them. */
TEST(test_affinity)
{
    struct profile p;
    cpu_set_t all, one;
    unsetenv("OMP_NUM_THREADS");
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE && !CPU_COUNT(&one); i++)
        if (CPU_ISSET(i, &all)) CPU_SET(i, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    profile_default(&p, DEVICE_CPU, 0);
    assert_int_equal(p.threads, 1);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
    setenv("OMP_NUM_THREADS", "3,1", 1);
    profile_default(&p, DEVICE_CPU, 0);
    assert_int_equal(p.threads, 3);
}

MAIN(NULL, NULL)

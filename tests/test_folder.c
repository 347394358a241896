/*
 * test_folder.c: the run's folder: locking, what a resume finds after a kill at any point, and the
 * truncation of metrics.
 */
#include <sys/stat.h>
#include <sys/wait.h>

#include "io/file.h"
#include "train/folder.h"

#include "harness.h"

static char top[64];

static int make_top(void **state)
{
    strcpy(top, "/tmp/plimsoll-folder-XXXXXX");
    return mkdtemp(top) ? 0 : -1;
}

static int remove_top(void **state)
{
    struct error e;
    return tree_remove(top, &e);
}

/* top/name, in a ring of buffers. */
static char *in_top(const char *name)
{
    static char paths[8][512];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", top, name);
    return path;
}

static void put(const char *path, const char *text)
{
    struct error e = {0};
    if (file_write_atomic(path, text, strlen(text), &e)) fail_msg("%s", e.text);
}

static void assert_holds(const char *path, const char *text)
{
    struct error e = {0};
    char *bytes = NULL;
    size_t n;
    if (file_read(path, 1 << 20, &bytes, &n, &e)) fail_msg("%s", e.text);
    assert_string_equal(bytes, text);
    mem_free(bytes);
}

static void assert_has(const char *text, const char *part)
{
    if (!strstr(text, part)) fail_msg("\"%s\" is not in \"%s\"", part, text);
}

static void open_folder(struct folder *f, const char *dir, bool resume)
{
    struct error e = {0};
    if (folder_open(f, dir, resume, &e)) fail_msg("%s", e.text);
}

static void refuses(const char *dir, bool resume, int code, const char *part)
{
    struct folder f;
    struct error e = {0};
    assert_int_equal(folder_open(&f, dir, resume, &e), code);
    assert_has(e.text, part);
    assert_has(e.text, dir);
}

static void save(struct folder *f, int64_t step, int64_t keep, const char *content)
{
    struct error e = {0};
    const char *path;
    char file[600];
    if (folder_checkpoint_begin(f, step, &path, &e)) fail_msg("%s", e.text);
    snprintf(file, sizeof file, "%s/state", path);
    put(file, content);
    if (folder_checkpoint_commit(f, keep, &e)) fail_msg("%s", e.text);
}

static int64_t latest(struct folder *f)
{
    struct error e = {0};
    int64_t step;
    char path[FOLDER_PATH];
    if (folder_checkpoint_latest(f, &step, path, &e)) fail_msg("%s", e.text);
    assert_true((step < 0) == (path[0] == 0));
    return step;
}

TEST(test_open)
{
    struct folder f;
    struct error e = {0};
    char *dir = in_top("a/b/run");
    refuses(dir, true, PL_USAGE, "nothing to resume");
    open_folder(&f, dir, false);
    assert_true(dir_exists(in_top("a/b/run/checkpoints")));
    assert_int_equal(folder_write(&f, "config.yaml", "x: 1\n", 5, &e), PL_OK);
    folder_close(&f);
    folder_close(&f); /* a second close has no effect */
    refuses(dir, false, PL_USAGE, "--resume");
    refuses(dir, true, PL_USAGE, "has no checkpoint to resume from");
    put(in_top("a/b/run/model"), ""); /* a file: no model */
    refuses(dir, true, PL_USAGE, "has no checkpoint to resume from; to start again");
    unlink(in_top("a/b/run/model"));
    mkdir(in_top("a/b/run/model"), 0777);
    refuses(dir, true, PL_USAGE, "only the final model");
    put(in_top("a/b/run/checkpoints/step-3"), ""); /* nothing with DONE */
    refuses(dir, true, PL_USAGE, "has no checkpoint to resume from");

    /* a folder left over from a failed start counts as empty */
    mkdir(in_top("locked"), 0777);
    put(in_top("locked/.lock"), "");
    refuses(in_top("locked"), true, PL_USAGE, "nothing to resume");
    open_folder(&f, in_top("locked/"), false);
    folder_close(&f);

    /* a folder of other contents remains unchanged */
    mkdir(in_top("home"), 0777);
    put(in_top("home/thesis.txt"), "text");
    refuses(in_top("home"), false, PL_USAGE, "not empty");
    refuses(in_top("home"), true, PL_USAGE, "nothing to resume");
    assert_false(file_exists(in_top("home/.lock")));

    struct folder g;
    assert_int_equal(folder_open(&g, in_top("home/thesis.txt/run"), false, &e), PL_USAGE);
    assert_int_equal(folder_open(&g, "", false, &e), PL_USAGE);
}

/* A run without a checkpoint may be begun again; a checkpoint, also one that a kill left under its
 * old name, and a model are kept. */
TEST(test_again)
{
    struct folder f;
    struct error e = {0};
    char *dir = in_top("again");
    assert_false(folder_resumes(dir));
    if (folder_open(&f, dir, FOLDER_AGAIN, &e)) fail_msg("%s", e.text);
    assert_int_equal(folder_write(&f, "config.yaml", "x: 1\n", 5, &e), PL_OK);
    folder_close(&f);
    assert_false(folder_resumes(dir));
    if (folder_open(&f, dir, FOLDER_AGAIN, &e)) fail_msg("%s", e.text);
    folder_close(&f);
    mkdir(in_top("again/checkpoints/step-3"), 0777);
    assert_false(folder_resumes(dir)); /* not complete */
    put(in_top("again/checkpoints/step-3/DONE"), "");
    assert_true(folder_resumes(dir));
    assert_int_equal(folder_open(&f, dir, FOLDER_AGAIN, &e), PL_FAIL);
    rename(in_top("again/checkpoints/step-3"), in_top("again/checkpoints/.step-3.old"));
    assert_true(folder_resumes(dir));
    unlink(in_top("again/checkpoints/.step-3.old/DONE"));
    rmdir(in_top("again/checkpoints/.step-3.old"));
    assert_false(folder_resumes(dir));
    mkdir(in_top("again/model"), 0777);
    assert_true(folder_resumes(dir));
}

/* A run without any step removes all its own files, and no others. */
TEST(test_abandon)
{
    struct folder f;
    struct error e = {0};
    const char *path;
    for (int own = 0; own < 2; own++) {
        char *dir = in_top(own ? "given" : "gone");
        if (own) mkdir(dir, 0777);
        open_folder(&f, dir, false);
        assert_int_equal(folder_write(&f, "config.yaml", "x: 1\n", 5, &e), PL_OK);
        assert_int_equal(folder_write(&f, "eval.txt", "x\n", 2, &e), PL_OK);
        assert_int_equal(folder_metrics(&f, &e, "{\"step\":0,\"eval_loss\":1}"), PL_OK);
        assert_int_equal(folder_checkpoint_begin(&f, 0, &path, &e), PL_OK); /* a failed save */
        folder_abandon(&f);
        assert_true(dir_exists(dir) == (own == 1));
    }
    open_folder(&f, in_top("given"), false);
    put(in_top("given/notes.txt"), "mine");
    folder_abandon(&f);
    assert_holds(in_top("given/notes.txt"), "mine");
    assert_false(file_exists(in_top("given/.lock")) || file_exists(in_top("given/checkpoints")));
}

TEST(test_read_only)
{
    if (geteuid() == 0) skip(); /* root may write anywhere */
    mkdir(in_top("readonly"), 0555);
    refuses(in_top("readonly"), false, PL_FAIL, "cannot");
    struct folder f;
    struct error e = {0};
    assert_int_equal(folder_open(&f, in_top("readonly/run"), false, &e), PL_FAIL);
}

/* The lock is per open file, so a child process acts as the other run. */
TEST(test_lock)
{
    struct folder f, g;
    struct error e = {0};
    char *dir = in_top("lock"), pid[32];
    open_folder(&f, dir, false);
    assert_int_equal(folder_write(&f, "config.yaml", "", 0, &e), PL_OK);
    save(&f, 2, 2, "two");
    snprintf(pid, sizeof pid, "process %ld,", (long)getpid());
    pid_t child = fork();
    if (!child) {
        bool ok = folder_open(&g, dir, true, &e) == PL_FAIL && strstr(e.text, pid);
        ok = ok && folder_open(&g, dir, false, &e) == PL_FAIL && strstr(e.text, pid);
        /* without the lock file, and with another one in its place */
        ok = ok && !unlink(in_top("lock/.lock")) && folder_open(&g, dir, true, &e) == PL_FAIL &&
             strstr(e.text, "process unknown,");
        put(in_top("lock/.lock"), "17\n");
        ok = ok && folder_open(&g, dir, true, &e) == PL_FAIL && strstr(e.text, "process 17,");
        _exit(ok ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    folder_close(&f);
    open_folder(&g, dir, true);
    folder_close(&g);
}

TEST(test_checkpoints)
{
    struct folder f;
    open_folder(&f, in_top("c"), false);
    assert_int_equal(latest(&f), -1);
    save(&f, 2, 2, "two");
    save(&f, 4, 2, "four");
    assert_int_equal(latest(&f), 4);
    save(&f, 10, 2, "ten"); /* ordered by number, not by name */
    assert_int_equal(latest(&f), 10);
    assert_false(file_exists(in_top("c/checkpoints/step-2")));
    assert_holds(in_top("c/checkpoints/step-4/state"), "four");
    assert_true(file_exists(in_top("c/checkpoints/step-10/DONE")));
    save(&f, 10, 1, "ten again"); /* replaces the existing one */
    assert_holds(in_top("c/checkpoints/step-10/state"), "ten again");
    assert_false(file_exists(in_top("c/checkpoints/step-4")));
    save(&f, 3, 1, "three"); /* the newest checkpoint is kept, although its step is the lowest */
    assert_int_equal(latest(&f), 3);

    struct error e = {0};
    struct names names;
    assert_int_equal(dir_list(in_top("c/checkpoints"), &names, &e), PL_OK);
    assert_int_equal(names.n, 1); /* and no other file remains */
    names_free(&names);
    folder_close(&f);
}

/* Saving allocates no memory: see the struct. */
TEST(test_no_allocation)
{
    struct folder f;
    struct error e = {0};
    const char *path;
    open_folder(&f, in_top("n"), false);
    uint64_t before = mem_allocations();
    for (int step = 0; step < 5; step++) {
        assert_int_equal(folder_metrics(&f, &e, "{\"step\": %d, \"loss\": %.9g}", step, 1.0 / 3), PL_OK);
        assert_int_equal(folder_checkpoint_begin(&f, step, &path, &e), PL_OK);
        assert_int_equal(folder_checkpoint_commit(&f, 2, &e), PL_OK);
    }
    assert_true(mem_allocations() == before);
    folder_close(&f);
}

/* States after a kill: a folder being written, one without DONE, one being removed, one whose
 * replacement is missing. */
TEST(test_after_kill)
{
    struct folder f;
    struct error e = {0};
    const char *path;
    open_folder(&f, in_top("k"), false);
    folder_write(&f, "config.yaml", "", 0, &e);
    save(&f, 5, 3, "five");
    assert_int_equal(folder_checkpoint_begin(&f, 6, &path, &e), PL_OK);
    folder_close(&f);
    mkdir(in_top("k/checkpoints/.step-6.tmp"), 0777); /* closing removes it, a kill does not */
    put(in_top("k/checkpoints/.step-6.tmp/state"), "half");
    mkdir(in_top("k/checkpoints/step-7"), 0777);
    mkdir(in_top("k/checkpoints/step-x"), 0777);
    mkdir(in_top("k/checkpoints/.step-4.tmp"), 0777);
    put(in_top("k/checkpoints/.step-4.tmp/DONE"), "");
    mkdir(in_top("k/checkpoints/.step-8.old"), 0777);
    put(in_top("k/checkpoints/.step-8.old/DONE"), "");
    mkdir(in_top("k/.model.old"), 0777);
    mkdir(in_top("k/.model.tmp"), 0777);
    put(in_top("k/.model.old/config.json"), "old");
    put(in_top("k/config.yaml.tmp.0123456789ab"), "cut");

    open_folder(&f, in_top("k"), true);
    assert_int_equal(latest(&f), 8); /* restored */
    assert_holds(in_top("k/model/config.json"), "old");
    assert_false(file_exists(in_top("k/.model.tmp")));
    assert_false(file_exists(in_top("k/checkpoints/.step-6.tmp")));
    assert_false(file_exists(in_top("k/checkpoints/.step-4.tmp")));
    assert_false(file_exists(in_top("k/config.yaml.tmp.0123456789ab")));
    save(&f, 9, 2, "nine");
    assert_int_equal(latest(&f), 9);
    assert_true(file_exists(in_top("k/checkpoints/step-7"))); /* not a checkpoint of this run */
    folder_close(&f);
}

TEST(test_stale_staging)
{
    struct folder f;
    struct error e = {0};
    const char *path;
    open_folder(&f, in_top("s"), false);
    assert_int_equal(folder_checkpoint_begin(&f, 1, &path, &e), PL_OK);
    put(in_top("s/checkpoints/.step-1.tmp/old"), "old");
    assert_int_equal(folder_checkpoint_begin(&f, 1, &path, &e), PL_OK);
    assert_false(file_exists(in_top("s/checkpoints/.step-1.tmp/old")));
    folder_close(&f);
}

static void publish(struct folder *f, enum folder_model which, const char *content)
{
    struct error e = {0};
    const char *path;
    char file[600];
    if (folder_model_begin(f, which, &path, &e)) fail_msg("%s", e.text);
    snprintf(file, sizeof file, "%s/sub", path);
    mkdir(file, 0777);
    snprintf(file, sizeof file, "%s/sub/config.json", path);
    put(file, content);
    if (folder_model_publish(f, which, &e)) fail_msg("%s", e.text);
}

TEST(test_model)
{
    struct folder f;
    char path[FOLDER_PATH];
    open_folder(&f, in_top("m"), false);
    assert_false(folder_model_path(&f, FOLDER_FINAL, path));
    publish(&f, FOLDER_FINAL, "one");
    assert_holds(in_top("m/model/sub/config.json"), "one");
    assert_true(folder_model_path(&f, FOLDER_FINAL, path));
    publish(&f, FOLDER_FINAL, "two");
    assert_holds(in_top("m/model/sub/config.json"), "two");
    assert_false(file_exists(in_top("m/.model.tmp")));
    assert_false(file_exists(in_top("m/.model.old")));
    folder_close(&f);
}

/* The best model lies among the checkpoints and is none: it is not counted, not resumed from, and
 * not removed with the old ones. After a kill its incomplete folder is removed or restored. */
TEST(test_best)
{
    struct folder f;
    struct error e = {0};
    int64_t count;
    open_folder(&f, in_top("b"), false);
    assert_int_equal(folder_write(&f, "config.yaml", "", 0, &e), PL_OK);
    publish(&f, FOLDER_BEST, "one");
    assert_int_equal(latest(&f), -1);
    for (int64_t step = 1; step < 5; step++) save(&f, step, 1, "x");
    publish(&f, FOLDER_BEST, "two");
    assert_holds(in_top("b/checkpoints/best/sub/config.json"), "two");
    assert_int_equal(latest(&f), 4);
    assert_int_equal(folder_checkpoint_count(&f, &count, &e), PL_OK);
    assert_int_equal(count, 1);
    folder_close(&f);

    mkdir(in_top("b/checkpoints/.best.tmp"), 0777);
    assert_int_equal(rename(in_top("b/checkpoints/best"), in_top("b/checkpoints/.best.old")), 0);
    open_folder(&f, in_top("b"), true);
    assert_holds(in_top("b/checkpoints/best/sub/config.json"), "two");
    assert_false(file_exists(in_top("b/checkpoints/.best.tmp")));
    assert_false(file_exists(in_top("b/checkpoints/.best.old")));
    folder_close(&f);
}

static void check_metrics_cut(const char *before, int64_t step, const char *after)
{
    struct folder f;
    struct error e = {0};
    open_folder(&f, in_top("metrics"), true);
    put(in_top("metrics/metrics.jsonl"), before);
    assert_int_equal(folder_metrics_cut(&f, step, &e), PL_OK);
    assert_holds(in_top("metrics/metrics.jsonl"), after);
    /* and new lines are appended from there */
    assert_int_equal(folder_metrics(&f, &e, "{\"step\": %d}", 99), PL_OK);
    struct text want = {0};
    text_printf(&want, "%s{\"step\": 99}\n", after);
    assert_holds(in_top("metrics/metrics.jsonl"), want.at);
    text_free(&want);
    folder_close(&f);
}

TEST(test_metrics)
{
    struct folder f;
    struct error e = {0};
    open_folder(&f, in_top("metrics"), false);
    folder_write(&f, "config.yaml", "", 0, &e);
    save(&f, 2, 2, "two");
    assert_int_equal(folder_metrics_cut(&f, 3, &e), PL_OK); /* no file yet */
    assert_int_equal(folder_metrics(&f, &e, "{\"step\": 1, \"loss\": %.3f}", 2.5), PL_OK);
    assert_int_equal(folder_metrics(&f, &e, "{\"step\": 2, \"loss\": %.3f}", 1.5), PL_OK);
    assert_holds(in_top("metrics/metrics.jsonl"), "{\"step\": 1, \"loss\": 2.500}\n{\"step\": 2, \"loss\": 1.500}\n");
    folder_close(&f);

#define A "{\"step\": 1, \"loss\": 1}\n"
#define B "{\"loss\":2,\"step\":2}\n"
#define V "{\"kind\": \"eval\", \"step\": 2, \"loss\": 2}\n"
#define C "{\"step\": 10}\n"
    check_metrics_cut(A B V C, 2, A B V);
    check_metrics_cut(A B V C, 1, A);
    check_metrics_cut(A B V C, 0, "");
    check_metrics_cut(A B V C, 10, A B V C);
    check_metrics_cut(A B "{\"step\": 2, \"lo", 5, A B);
    check_metrics_cut(A "{\"step\": 2}", 5, A);
    check_metrics_cut(A B C "\n\n", 9, A B);
    check_metrics_cut("", 5, "");
}

TEST(test_space)
{
    struct folder f;
    struct error e = {0};
    open_folder(&f, in_top("space"), false);
    assert_int_equal(folder_require_space(&f, 1, &e), PL_OK);
    assert_int_equal(folder_require_space(&f, UINT64_C(1) << 62, &e), PL_FAIL);
    assert_has(e.text, "4611686018427387904 bytes");
    assert_has(e.text, "are free");
    assert_has(e.text, top);
    folder_close(&f);
}

MAIN(make_top, remove_top)

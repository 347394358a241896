/*
 * step_callback.c: what `plimsoll train RUN.yaml` does, with a callback after each step.
 *
 *     make examples && build/examples/step_callback examples/tiny.yaml LOSS [KEY VALUE]...
 *
 * Prints a line per step and stops as soon as the mean loss of the last eight steps is below LOSS.
 * A stopped run is saved: pl_resume, or `plimsoll train --resume`, continues it.
 */
#include <plimsoll.h>
#include <stdio.h>
#include <stdlib.h>

enum { WINDOW = 8 };

struct watch {
    double goal, last[WINDOW];
};

static int on_step(const struct pl_step_info *info, void *user)
{
    struct watch *w = user;
    double sum = 0;
    w->last[info->step % WINDOW] = info->loss;
    for (int i = 0; i < WINDOW; i++) sum += w->last[i];
    printf("%lld of %lld: loss %.4f, gradient norm %.3f, learning rate %.2e, %.0f ms\n", (long long)info->step,
           (long long)info->steps, info->loss, info->gradient_norm, info->learning_rate, 1000 * info->seconds);
    return info->step >= WINDOW && sum / WINDOW < w->goal;
}

int main(int argc, char **argv)
{
    if (argc < 3 || argc % 2 == 0) {
        fprintf(stderr, "usage: step_callback RUN.yaml LOSS [KEY VALUE]...\n");
        return PL_USAGE;
    }
    struct watch w = {.goal = atof(argv[2])};
    struct pl_session *s = pl_open();
    int rc = pl_read_yaml(s, argv[1]);
    for (int i = 3; i + 1 < argc && !rc; i += 2) rc = pl_set(s, argv[i], argv[i + 1]);
    if (!rc) rc = pl_on_step(s, on_step, &w);
    if (!rc) rc = pl_train(s);
    if (rc) printf("%s\n", pl_message(s));
    if (!rc || rc == PL_STOPPED) printf("the model is in %s\n", pl_model_path(s));
    pl_close(s);
    return rc == PL_STOPPED ? PL_OK : rc;
}

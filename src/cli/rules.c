/*
 * rules.c: rules of thumb from published guides, unchanged, for comparison with a plan; and a list
 * of their errors.
 */
#include "cli/plan_tables.h"

static struct rule_batch finish(int batch, int accumulation)
{
    return (struct rule_batch){batch, accumulation, batch * accumulation};
}

/* Gigabytes per sample. */
static double sample_memory(int images) { return 0.8 * (1.0 + (images - 1) * 0.7); }

struct rule_batch rule_multi_image(double gigabytes, int images, int target)
{
    int batch = (int)(gigabytes * 0.8 / sample_memory(images));
    if (batch < 1) batch = 1;
    int accumulation = target / batch;
    return finish(batch, accumulation < 1 ? 1 : accumulation);
}

struct rule_batch rule_multi_image_corrected(double gigabytes, int images, int target)
{
    int batch = (int)((gigabytes * 0.8 - 14) / sample_memory(images));
    if (batch < 1) batch = 1;
    if (batch > target) batch = target;
    return finish(batch, (target + batch - 1) / batch);
}

const char *rule_prs_med(double gigabytes)
{
    if (gigabytes >= 80) return "batch 8-32, AMP";
    if (gigabytes >= 24) return "batch 4-8, AMP";
    if (gigabytes >= 16) return "batch 2-4, AMP, accumulate";
    return "batch 1, everything";
}

const char *rule_video(double gigabytes)
{
    if (gigabytes >= 24) return "batch 8-16, 200+ frames";
    if (gigabytes >= 16) return "batch 4-8, 100-150 frames";
    return "batch 2-4, 50-75 frames";
}

void rules_errata(struct text *out)
{
    text_printf(out, "Errors of the rules\n"
                     "  multi-image rule     ignores the weights (13 GiB of a 7B model in 16 bits) and rounds "
                     "accumulation down: 24 GiB and 2 images give\n"
                     "                       14 x 1 = 14, where its own text has 2 x 8 = 16; with the weights "
                     "subtracted and rounded up it is 3 x 6\n"
                     "                       its factor per further image (0.7) disagrees with its own table (1.87 for "
                     "two images, not 1.7)\n"
                     "  PRS-Med tiers        frozen weights neither halve with AMP nor scale with the batch: a 7B "
                     "model in 16 bits needs 14 GiB before\n"
                     "                       anything else, so 16 GiB GPUs do not hold it, and 8 GiB GPUs need 4-bit "
                     "weights or offload\n"
                     "  video tiers          2B weights are 7.5 GiB in 32 bits and 3.7 GiB in 16, not 4 and 2; "
                     "\"disable checkpointing\" raises memory\n");
}

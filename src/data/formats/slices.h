/*
 * slices.h: pairs of volumes become samples: each slice of a volume with the same slice of its
 * label volume.
 *
 *     images/case_01.nii.gz, labels/case_01.nii.gz      ->   case_01_z000, case_01_z001, ...
 *
 * Slices without a label are left out unless options.slices.all. A case that cannot be used (a cut
 * file, another size than its labels) is left out and named; if none is left its message is the
 * error. A TIFF of one page is a sample as a PNG is.
 */
#ifndef SLICES_H
#define SLICES_H

#include "data/formats/pairs.h"

/* Replaces the items of d->state whose files are volumes by their slices. */
int slices_expand(struct dataset *d, struct error *e);
/* The channels of a sample's image. */
struct volume_channels slices_channels(const struct pairs *p, const struct item *i);

#endif

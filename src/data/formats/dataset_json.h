/*
 * dataset_json.h: what nnU-Net's and the Medical Segmentation Decathlon's dataset.json say about
 * label values and modalities:
 *
 *    {"labels": {"background": 0, "liver": 1}, "channel_names": {"0": "CT"}}  nnU-Net 2
 *    {"labels": {"0": "background", "1": "liver"}, "modality": {"0": "CT"}}    Decathlon, nnU-Net 1
 */
#ifndef DATASET_JSON_H
#define DATASET_JSON_H

#include "base/base.h"

struct dataset_json {
    struct dataset_json_label {
        int64_t value;
        char name[64];
    } *labels;
    uint32_t n_labels, modalities;
    char modality[256]; /* "FLAIR, T1w, t1gd, T2w" */
};
/* Reads FOLDER/dataset.json or the one beside FOLDER. No such file, or one without labels:
 * everything is empty. */
void dataset_json_read(struct dataset_json *j, const char *folder);
void dataset_json_free(struct dataset_json *j);
const char *dataset_json_name(const struct dataset_json *j, int64_t value); /* NULL: none */
/* Returns the value of a name, or -1. */
int64_t dataset_json_value(const struct dataset_json *j, const char *name);

#endif

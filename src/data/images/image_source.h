/*
 * image_source.h: the images of a model's conversations: where their files are, what the tower gets
 * of them, and how they stand in the text.
 */
#pragma once

#include "data/images/image_files.h"
#include "data/images/image_processor.h"
#include "data/images/image_reader.h"
#include "models/modalities.h"
#include "text/template/chat_images.h"

struct image_source {
    struct image_text text;
    struct image_processor processor;
    struct patch_rules patches;      /* of a model that takes images of any size, instead; else merge is 0... */
    struct patch_rules video_patches; /* ...and of its videos (text.any_size) */
    struct image_files *files;
    uint64_t room;                   /* of image_scope */
    bool anywhere;
    struct image_processor frame_processor;
    struct template *video_template; /* that of videos, where they are described (image_text.video_template) */
    /* which frames are taken, and how images of a folder are read, in videos.room bytes; max_frames
     * 0: videos are not */
    struct video_options videos;
    struct modality_list modalities; /* of volumes, */
    struct volume_options volumes;   /* and how they are viewed... */
    struct pixel_range range;        /* ...and their values are taken */
};

/* Frees a source; a zeroed struct is allowed. */
void image_source_close(struct image_source *s);
/* Returns a processor with the normalisation of patches. */
struct image_processor image_source_normalisation(const struct patch_rules *p);
/* Returns how many patches become a token; 0: images have one size. */
int64_t image_source_patches_per_token(const struct image_source *s);
/* Returns a hash of everything that decides ids, apart from the sizes of images. */
uint64_t image_source_fingerprint(const struct image_source *s);

/* The pixels of an image, or of a video frame by frame, as the tower takes them: `take` gets their
 * bytes as [count][channels][side][side], or as `count` patches; NULL: they are only read.
 * `beside`: the conversation has other images (image_processor_beside). Thread-safe. PL_USAGE, with
 * the reference: it is missing or broken. */
struct image_pixels {
    uint32_t count;      /* of all */
    struct patch_grid grid; /* of patches; known before `take` is called */
    bool video;
    double seconds;      /* of a video, that one of grid.t lasts */
    uint64_t used;       /* bytes of memory that reading took, at most */
    int modality;        /* of a volume, whose patches are f32 (volume.h); below 0: an image or a video */
};
int image_source_read(const struct image_source *s, const char *reference, bool beside, image_take *take, void *user,
                      struct image_pixels *out, struct error *e);
/* Counts the images among the images and videos of a conversation. */
uint32_t image_source_images(char *const *references, uint32_t n);

/* Finds the tiles of an image, by its size in the file, or the frames or grids of a video, whose
 * times are in `b`. Thread-safe. PL_USAGE, with the reference: it is missing, or no image or
 * video. */
int image_source_tiles(const struct image_source *s, const char *reference, struct bump *b, struct image_tiles *out,
                       struct error *e);

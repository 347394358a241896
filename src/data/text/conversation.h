/*
 * conversation.h: a sample of `data.format: conversations`, in one form whatever the file's is.
 *
 *     LLaVA, ShareGPT     {conversations: [{from, value}], system?, tools?, image(s)?, video(s)?}
 *     OpenAI messages     {messages: [{role, content: string or parts, tool_calls?}], tools?,
 *                          chat_template_kwargs?}
 *     Alpaca              {instruction, input?, output, system?, history?: [[question, answer]]}
 *     prompt, completion  {prompt, completion}: texts, or lists of messages
 *     text                {text}
 *
 * become a list of messages {role, content, ...} with the roles system, user, assistant and tool,
 * as chat templates take them; prompt and completion of texts, and text, stay text, which no
 * template renders. The keys tell the formats apart.
 *
 * A volume is an image of a modality: {"path": "T1.nii.gz", "modality": "T1"} among the images, a
 * NIfTI file there, or modality_paths: {T1: "T1.nii.gz", rsfMRI: ["a.nii.gz", "b.nii.gz"]} beside
 * the messages, whose volumes come in their order, after the images.
 *
 * An image is the text <image> where it stands (text/template/chat_images.h), whether the file has
 * that or a part {type: image}; a part is set apart from its neighbours by a line break. Videos are
 * <video>.
 */
#pragma once

#include "io/value.h"

/* Why a sample cannot be used. */
enum conversation_fault {
    SAMPLE_FINE,
    SAMPLE_JSON,     /* malformed JSON, invalid UTF-8 */
    SAMPLE_KEYS,     /* none of the formats */
    SAMPLE_TYPE,     /* a value of another type than the format has */
    SAMPLE_ROLE,     /* an unknown role */
    SAMPLE_ORDER,    /* turns out of order */
    SAMPLE_ANSWER,   /* nothing that the assistant says */
    SAMPLE_MEDIA,    /* images or videos, for a model that does not take them */
    SAMPLE_IMAGES,   /* more or fewer <image> than images, or <video> than videos */
    SAMPLE_FILES,    /* an image or a video that cannot be read */
    SAMPLE_TEMPLATE, /* the chat template fails */
    SAMPLE_SPANS,    /* the answers are not found in the rendered text */
    SAMPLE_TOKENS,   /* the tokenizer fails */
    SAMPLE_FAULTS
};
/* Returns a fault in words: "turns out of order". */
const char *conversation_fault_name(enum conversation_fault f);

struct conversation {
    struct value *messages;          /* NULL: only a text, or a prompt and its completion */
    struct value *beside;            /* a map: tools and chat_template_kwargs (chat.h), if it has them */
    const char *prompt, *completion; /* text: one after the other, the answer is the second */
    /* list of references to images and videos (image_files.h), in their order; empty: none */
    struct value *media;
    uint32_t videos;                 /* of them */
};

/* Reads a sample. What `out` points to is in `b`, or is the sample's. `system`: the system prompt
 * of conversations that have none; NULL: none. `joint` stands between an image and a text that are
 * parts of a content: image_text_joint. Returns the fault, with a sentence in `e`. */
enum conversation_fault conversation_read(const struct value *sample, const char *system, const char *joint,
                                          struct bump *b, struct conversation *out, struct error *e);

/* Reads a chat that is to be answered: a list of messages, or a map with messages, tools,
 * chat_template_kwargs and images. The order of turns is not checked. */
enum conversation_fault conversation_read_chat(const struct value *chat, const char *joint, struct bump *b,
                                               struct conversation *out, struct error *e);
/* Reads a prompt that is to be answered: a map as for conversation_read_chat, or with `prompt` in
 * place of messages: a text, or messages. */
enum conversation_fault conversation_read_prompt(const struct value *sample, const char *joint, struct bump *b,
                                                 struct conversation *out, struct error *e);

/* Returns the path of one image or video: a string, or the string of a map such as {"path": ...}
 * or {"url": ...}; NULL: neither. */
const char *media_path(const struct value *v);

/* Returns how many <image> it has, and SAMPLE_IMAGES if its images are more or fewer. */
uint32_t conversation_images(const struct conversation *c);
enum conversation_fault conversation_check_images(const struct conversation *c, struct error *e);
/* Returns the group of a sample in a split (data/order.h), a hash: that of its first video, else of
 * its first image; 0: it has neither. Conversations about one image are not on both sides. */
uint64_t conversation_group(const struct value *media);
/* Returns the same for images and videos; then each has an <image>, in their order. In the data a
 * video stands at <video>; or at <image>, if all are videos. Without videos <video> is text. */
enum conversation_fault conversation_place_media(struct conversation *c, struct bump *b, struct error *e);

/* Parses the text of an object; SAMPLE_JSON with the column if it is malformed. */
enum conversation_fault conversation_parse(const char *json, size_t n, uint64_t most, struct bump *b,
                                           struct value **out, struct error *e);

/* Returns which format has the keys of a sample, "LLaVA or ShareGPT conversations"; NULL: none. */
const char *conversation_format(const struct value *sample);
/* Reports whether a key of a sample is read in any format. */
bool conversation_key(const char *key);
#define CONVERSATION_KEYS "messages, conversations, instruction and output, prompt and completion, or text"

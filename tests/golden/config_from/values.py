"""Values of several parts of a training program."""
import torch

optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95))
scheduler = LinearLR(optimizer, start_factor=0.01, total_iters=250)
encoder = CheckpointedViT(vit, checkpoint_every_n=2)
masks = MaskSubsampler(max_masks=32, strategy='diverse')
loader = DataLoader(dataset, batch_size=2, shuffle=True, num_workers=4, pin_memory=True)
model = FSDP(model, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)
training_config = {
    "gpus": "8x A100 80GB",
    "global_batch_size": 16,
    "sequence_length": 2048,
    "max_patches": 200,  # of an image
}

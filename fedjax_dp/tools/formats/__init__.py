"""Client data in files of other systems: LEAF, TensorFlow Federated, Hugging Face. No network, no pickle, no code."""

"""What people do with compiled models, each beside the same in eager."""

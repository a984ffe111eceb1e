//! Puts the plugin and its configuration on the node, and keeps them there.

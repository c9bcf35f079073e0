package webhooks

// Hooks is the collection of webhooks, for what seals their secrets anew.
var Hooks = hooks

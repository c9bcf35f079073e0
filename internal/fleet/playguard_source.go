package fleet

// Entity types of what playgrounds are made from.
const (
	EntitySecret = "playground_secret"
)

// Events of branches and secrets.
const (
	EventPlaygroundBranchMoved   = "playground.branch_moved"
	EventPlaygroundBranchTrouble = "playground.branch_trouble"
	EventPlaygroundBranchMended  = "playground.branch_mended"
	EventSecretSet               = "playground_secret.set"
	EventSecretRemoved           = "playground_secret.removed"
	EventSecretRefreshed         = "playground_secret.refreshed"
	EventSecretStale             = "playground_secret.stale"
)

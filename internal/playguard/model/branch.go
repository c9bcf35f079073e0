package model

// Kinds of operations about what a playground is made from.
const (
	OpBranch OpKind = "branch" // a checkout is made, or goes forward
	OpPull   OpKind = "pull"   // images come; nothing else changes
	OpAuth   OpKind = "auth"   // what its registries are logged in with
	OpMark   OpKind = "mark"   // its owner marker is written again
)

// Pull says when images are fetched before an up.
type Pull string

// Pulls. The empty one leaves it to Compose, within the time of the up.
const (
	PullMissing Pull = "missing" // those that the host has not
	PullAlways  Pull = "always"  // all
	PullDigest  Pull = "digest"  // those that it has not; every image names its digest
)

// Pulls lists them.
func Pulls() []Pull { return []Pull{PullMissing, PullAlways, PullDigest} }

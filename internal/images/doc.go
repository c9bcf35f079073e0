// Package images knows what the hosts of a fleet boot: it pins a reference to
// a digest once, has hosts pull what they lack before a create, and tells
// which hosts hold what.
package images

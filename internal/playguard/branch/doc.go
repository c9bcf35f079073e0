// Package branch has playgrounds follow branches of git repositories: they are
// checked out and go forward on the marquee, and what they define there drives
// rollouts as an up by a person does. A checkout that holds work is left alone.
package branch

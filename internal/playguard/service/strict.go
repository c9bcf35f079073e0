package service

import (
	"fmt"
	"slices"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/compose"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/state"
)

// Strictest takes of each danger the harder verdict of a marquee and a request.
func Strictest(marquee, request compose.Policy) compose.Policy { return strictest(marquee, request) }

// CheckName refuses names that people could not tell apart or type.
func CheckName(name string) error { return checkName("name", name) }

// Ends writes when a playground ends: as asked for, or as its marquee has it.
func Ends(tx *state.Tx, p *records.Playground, expires string) (err error) {
	if expires != "" {
		p.Expiry, err = model.ParseExpiry(expires, tx.Now())
		return err
	}
	if m, ok := records.Marquees.Get(tx, string(p.Marquee)); ok && m.DefaultExpiry > 0 {
		p.Expiry = model.Until(tx.Now().Add(m.DefaultExpiry), tx.Now())
	}
	return nil
}

// fetching checks what an up says about where its images and itself come from.
func (d *draft) fetching() error {
	switch {
	case d.existing != nil && !d.existing.Source.IsZero():
		return fleet.Errorf(fleet.CodeConflict, "playground %s follows branch %s", d.existing.Name, d.existing.Source.Branch).
			With(fleet.DetailReason, "exists").With(fleet.DetailRemedy, "push to the branch, or take another name")
	case d.pull != "" && !slices.Contains(model.Pulls(), d.pull):
		return fleet.Invalid("pull", fmt.Sprint(model.Pulls()), "leave it out to have Compose decide", "is %.20q", d.pull)
	case d.pull == model.PullDigest:
		return compose.Pinned(d.version.Compose)
	}
	return nil
}

package sim

import (
	"context"

	"github.com/fusevm/fuse/internal/hostd/driver"
)

// credentials are what the last rotation gave a simulated guest.
type credentials struct {
	Rotation int64  `json:"rotation"`
	Token    string `json:"token"`
	Cert     string `json:"cert"`
}

var _ driver.Rotator = (*instance)(nil)

// Rotate implements driver.Rotator. Guest and record are one line here, so
// there is nothing in between.
func (i *instance) Rotate(ctx context.Context, r driver.Rotation) error {
	if err := (guest{i}).alive(); err != nil {
		return err
	}
	if err := i.d.pass(ctx, "rotate"); err != nil {
		return err
	}
	c, err := load(i.dir)
	if err != nil {
		return err
	}
	if last := c.Credentials; last != nil {
		if later, err := r.After(last.Rotation, last.Token); !later {
			return err
		}
	}
	return add(i.dir, content{Credentials: &credentials{r.Number, r.Token, string(r.CertPEM)}}, 0)
}

// Credentials are the token and certificate that a guest took with its last
// rotation, for tests; empty before the first.
func (d *Driver) Credentials(uid string) (token, cert string) {
	d.mu.Lock()
	i := d.vms[uid]
	d.mu.Unlock()
	if i == nil {
		return "", ""
	}
	c, err := load(i.dir)
	if err != nil || c.Credentials == nil {
		return "", ""
	}
	return c.Credentials.Token, c.Credentials.Cert
}

package golden

import (
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/secrets"
)

// Nobody is the identity of a machine that is only made to be captured. Nobody
// keeps its token.
func Nobody() (driver.Identity, error) {
	c, err := secrets.NewVMCredentials("golden")
	if err != nil {
		return driver.Identity{}, err
	}
	return driver.Identity{
		Hostname: "golden", MachineID: c.MachineID, Token: c.Token, CertPEM: c.CertPEM, KeyPEM: c.KeyPEM,
	}, nil
}

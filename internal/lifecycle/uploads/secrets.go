package uploads

import (
	"encoding/json"
	"fmt"

	"github.com/fusevm/fuse/internal/fleet"
)

// GuestEnvPath holds the manifest's machine environment for scripts to source.
const GuestEnvPath = fleet.ReservedGuestDir + "/env"

// SecretFiles are the guest's files that hold secrets: all of them, and the
// machine's environment, which may be made of some.
func SecretFiles(secrets map[string]string, egress fleet.EgressSpec, env []byte) ([]fleet.GuestFile, error) {
	doc, err := json.Marshal(GuestSecrets(secrets, egress))
	if err != nil {
		return nil, fmt.Errorf("encode secrets: %w", err)
	}
	files := []fleet.GuestFile{{Path: fleet.FuseSecretsPath, Data: doc, Mode: 0o600}}
	if len(env) > 0 {
		files = append(files, fleet.GuestFile{Path: GuestEnvPath, Data: env, Mode: 0o600})
	}
	return files, nil
}

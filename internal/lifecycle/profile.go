package lifecycle

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/lifecycle/uploads"
)

// egressProfile exports the proxy variables into login shells. The file that
// it reads is empty when traffic leaves directly, since an empty HTTP_PROXY is
// not the same as none.
const egressProfile = `# Proxy variables of this environment, if it has any.
if [ -s ` + fleet.GuestEgressEnvPath + ` ]; then
	set -a
	. ` + fleet.GuestEgressEnvPath + `
	set +a
fi
`

// profileFiles are the files that every guest gets besides its identity. The
// egress files are written for direct egress too and are world-readable, so a
// workload can tell "not proxied" from "not told".
func (p *plan) profileFiles() ([]fleet.GuestFile, error) {
	secrets, err := uploads.SecretFiles(p.boot.Secrets, p.spec.Egress, p.manifest.Machine.Env.Lines(p.boot.Secrets))
	if err != nil {
		return nil, err
	}
	egress, err := json.Marshal(fleet.EgressSpec{Mode: fleet.EgressDirect})
	if err != nil {
		return nil, fmt.Errorf("encode egress: %w", err)
	}
	files := []fleet.GuestFile{
		{Path: fleet.GuestManifestPath, Data: p.boot.Manifest, Mode: 0o600},
		{Path: fleet.GuestEgressJSONPath, Data: egress, Mode: 0o644},
		{Path: fleet.GuestEgressEnvPath, Data: []byte{}, Mode: 0o644},
		{Path: fleet.GuestEgressProfilePath, Data: []byte(egressProfile), Mode: 0o644},
	}
	files = append(files, secrets...)
	return append(files, p.boot.Healthcheck.Files()...), nil
}

// callerFiles are the caller's files in order of their paths.
func (p *plan) callerFiles() []fleet.GuestFile {
	files := make([]fleet.GuestFile, 0, len(p.boot.Files))
	for path, data := range maps.All(p.boot.Files) {
		files = append(files, fleet.GuestFile{Path: path, Data: data, Mode: 0o644})
	}
	slices.SortFunc(files, func(a, b fleet.GuestFile) int { return cmp.Compare(a.Path, b.Path) })
	return files
}

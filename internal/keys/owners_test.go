package keys

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
)

// Somebody acts for an owner while one of the owner's keys is good: the strongest
// of them counts, and one that is revoked or expired does not.
func TestActing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, store := setup(t)
		acts := func(owner string, least fleet.Role) (is bool) {
			if err := store.View(func(tx *state.ReadTx) error {
				is = Acting(tx)(owner, least)
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			return is
		}
		strong, _ := create(t, s, CreateRequest{Role: fleet.RoleOperator, Owner: "ann"})
		create(t, s, CreateRequest{Role: fleet.RoleRead, Owner: "ann"})
		create(t, s, CreateRequest{Role: fleet.RoleUser, Owner: "bob", ExpiresAt: time.Now().Add(time.Hour)})
		check := func(when string, want map[string]fleet.Role) {
			t.Helper()
			for _, owner := range []string{"ann", "bob", "nobody", fleet.OwnerMaster} {
				met := false
				for _, least := range fleet.KeyRoles {
					met = met || want[owner] == least
					if got := acts(owner, least); got != met {
						t.Errorf("%s: somebody acts for %s as %s: %v, want %v", when, owner, least, got, met)
					}
				}
			}
		}
		check("at first", map[string]fleet.Role{"ann": fleet.RoleOperator, "bob": fleet.RoleUser, fleet.OwnerMaster: fleet.RoleAdmin})
		if err := s.Revoke(t.Context(), strong.ID, fleet.ActorMaster); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Hour)
		check("later", map[string]fleet.Role{"ann": fleet.RoleRead, fleet.OwnerMaster: fleet.RoleAdmin})
	})
}

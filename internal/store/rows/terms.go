package rows

import (
	"fmt"

	"github.com/fusevm/fuse/internal/state"
)

// PruneTerms forgets terms: the newest state.KeptTerms stay, and the newest
// state.KeptTerms of those in which something was committed. A server that ends
// right after its start, again and again, must not push out what hosts know.
var PruneTerms = fmt.Sprintf(`DELETE FROM terms WHERE term NOT IN (SELECT term FROM terms ORDER BY term DESC LIMIT %[1]d)
	AND term NOT IN (SELECT term FROM (SELECT term, revision, lead(revision) OVER (ORDER BY term) AS following FROM terms) AS t
		WHERE following > revision ORDER BY term DESC LIMIT %[1]d)`, state.KeptTerms)

// PruneClaims does the same to claims, which are sorted newest first.
func PruneClaims(claims []state.Claim) []state.Claim {
	kept, used := claims[:0:0], 0
	for i, c := range claims {
		committed := i > 0 && claims[i-1].Revision > c.Revision
		if i < state.KeptTerms || committed && used < state.KeptTerms {
			kept = append(kept, c)
		}
		if committed {
			used++
		}
	}
	return kept
}

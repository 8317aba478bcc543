# SPDX-License-Identifier: Apache-2.0
# bash completion for kvcellar(1). Options come from each command's --help, so they are never stale.
_kvcellar() {
	local program=${COMP_WORDS[0]} current=${COMP_WORDS[COMP_CWORD]} command='' word skip=''
	local commands='info doctor selftest put get exists rm ls stat where verify usage pin unpin clean clear convert config stats top replay simulate bench help'

	for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
		if [ -n "$skip" ]; then
			skip=''
			continue
		fi
		case $word in
		-c | --config | -D | --dir | -s | --set) skip=1 ;;
		-*) ;;
		*)
			command=$word
			break
			;;
		esac
	done
	if [[ $current == -* ]]; then
		# shellcheck disable=SC2207
		COMPREPLY=($(compgen -W "$("$program" $command --help 2>/dev/null |
			grep -oE '^ +(-[a-zA-Z], )?--[a-z][a-z0-9-]*' | grep -oE -- '--[a-z][a-z0-9-]*')" \
			-- "$current"))
		return
	fi
	case $command in
	'' | help) COMPREPLY=($(compgen -W "$commands" -- "$current")) ;;
	config) COMPREPLY=($(compgen -W 'check show options sample' -- "$current") $(compgen -f -- "$current")) ;;
	*) COMPREPLY=($(compgen -f -- "$current")) ;;
	esac
}
complete -F _kvcellar kvcellar

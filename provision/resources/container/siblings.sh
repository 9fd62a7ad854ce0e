# shellcheck shell=sh
# sibling_containers NAME [--all]: prints the names of the siblings of worker container NAME, those
# that run or all of them. Worker 1 is called NAME; its siblings carry the label
# provision.sibling=NAME.
sibling_containers() {
    docker ps ${2+"$2"} --filter "label=provision.sibling=$1" --format '{{.Names}}'
}
